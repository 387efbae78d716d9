"""Studies, trials and attempts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the three tables."""
    op.create_table(
        "autotune_studies",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_at", sa.String(40), nullable=False),
        sa.Column("objective", sa.Text, nullable=False),
        sa.Column("maximise", sa.Boolean, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("versions", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_autotune_studies"),
        sa.UniqueConstraint("name", name="uq_autotune_studies_name"),
    )
    op.create_table(
        "autotune_trials",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("study_id", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column(
            "value",
            sa.Float(53),
            comment="The score's value for SQL queries; null when it is absent or not finite.",
        ),
        sa.Column("params", sa.Text, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("score", sa.Text, nullable=False),
        sa.Column("failure", sa.Text, nullable=False),
        sa.Column("notes", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_autotune_trials"),
        sa.ForeignKeyConstraint(
            ["study_id"], ["autotune_studies.id"], name="fk_autotune_trials_study_id", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("study_id", "number", name="uq_autotune_trials_study_id_number"),
        sa.CheckConstraint("number >= 0", name="ck_autotune_trials_number"),
    )
    op.create_table(
        "autotune_attempts",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("trial_id", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("started_at", sa.String(40), nullable=False),
        sa.Column("ended_at", sa.String(40)),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("argv", sa.Text, nullable=False),
        sa.Column("stages", sa.Text, nullable=False),
        sa.Column("failure", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_autotune_attempts"),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["autotune_trials.id"], name="fk_autotune_attempts_trial_id", ondelete="CASCADE"
        ),
        sa.UniqueConstraint("trial_id", "number", name="uq_autotune_attempts_trial_id_number"),
        sa.CheckConstraint("number >= 1", name="ck_autotune_attempts_number"),
    )


def downgrade() -> None:
    """Drop the three tables."""
    op.drop_table("autotune_attempts")
    op.drop_table("autotune_trials")
    op.drop_table("autotune_studies")
