"""Run by alembic: applies the migrations on the connection, and in the transaction, that `schema.migrate` opened."""

from alembic import context

from optimizer.storage.schema import VERSION_TABLE
from optimizer.storage.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()
