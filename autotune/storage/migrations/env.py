"""Run by Alembic, never imported: our tables, our version table, the caller's transaction."""

from alembic import context

from autotune.storage.migrate import VERSION_TABLE
from autotune.storage.schema import Row

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Row.metadata,
    version_table=VERSION_TABLE,
    include_name=lambda name, kind, _parents: kind != "table" or name in Row.metadata.tables,
    render_as_batch=True,  # SQLite cannot alter most things in place
)
with context.begin_transaction():
    context.run_migrations()
