"""What a study recommends."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "autotune_recommendations",
        sa.Column("study_id", sa.Integer, nullable=False),
        sa.Column("number", sa.Integer, nullable=False, comment="Of the recommended trial."),
        sa.Column("probability", sa.Float(53), nullable=False, comment="That it keeps every limit."),
        sa.Column("data", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("study_id", name="pk_autotune_recommendations"),
        sa.ForeignKeyConstraint(
            ["study_id"], ["autotune_studies.id"], name="fk_autotune_recommendations_study_id", ondelete="CASCADE"
        ),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("autotune_recommendations")
