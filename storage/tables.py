"""The tables of the history. Optuna keeps its own in the same database, hence the prefix.

Structured values are JSON in text columns (see `json_text`), since no JSON column type keeps key order and infinities
on both SQLite and PostgreSQL. Times are ISO 8601 in UTC with microseconds, so that their text sorts as they do.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

studies = Table(
    "autotune_studies",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("created_at", String(40), nullable=False),
    Column("objective", Text, nullable=False),
    Column("maximise", Boolean, nullable=False),
    Column("identity", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("versions", Text, nullable=False),
    Column("host", Text, nullable=False),
)

recommendations = Table(
    "autotune_recommendations",
    metadata,
    Column("study_id", Integer, ForeignKey("autotune_studies.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, nullable=False, comment="Of the recommended trial."),
    Column("probability", Float(53), nullable=False, comment="That it keeps every limit."),
    Column("data", Text, nullable=False),
)
"""What a study recommends, as its trials stand; no row while it recommends nothing."""

trials = Table(
    "autotune_trials",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("study_id", Integer, ForeignKey("autotune_studies.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("role", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("value", Float(53), comment="The score's value for SQL queries; null when it is absent or not finite."),
    Column("params", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("metrics", Text, nullable=False),
    Column("score", Text, nullable=False),
    Column("failure", Text, nullable=False),
    Column("notes", Text, nullable=False),
    UniqueConstraint("study_id", "number"),
    CheckConstraint("number >= 0", name="number"),
)

attempts = Table(
    "autotune_attempts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("trial_id", Integer, ForeignKey("autotune_trials.id", ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("owner", Text, nullable=False),
    Column("started_at", String(40), nullable=False),
    Column("ended_at", String(40)),
    Column("folder", Text, nullable=False),
    Column("argv", Text, nullable=False),
    Column("stages", Text, nullable=False),
    Column("failure", Text, nullable=False),
    UniqueConstraint("trial_id", "number"),
    CheckConstraint("number >= 1", name="number"),
)
