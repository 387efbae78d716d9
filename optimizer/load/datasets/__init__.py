"""Files of requests: read once from end to end and checked, then row by row as requests are made."""

from optimizer.load.datasets.index import DatasetIndex, index_of
from optimizer.load.datasets.rows import Row, RowNeeds, guessed_tokens

__all__ = ["DatasetIndex", "Row", "RowNeeds", "guessed_tokens", "index_of"]
