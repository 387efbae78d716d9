"""The history of studies in SQL: SQLite by default, PostgreSQL for several workers.

`optimizer.storage.optuna_storage` and `optimizer.storage.dashboard` import Optuna, which is slow to load, so they are
imported by their own names.
"""

from optimizer.storage.database import DEFAULT_FOLDER
from optimizer.storage.folders import attempt_folder
from optimizer.storage.store import StudyStore, has_history, open_store

__all__ = ["DEFAULT_FOLDER", "StudyStore", "attempt_folder", "has_history", "open_store"]
