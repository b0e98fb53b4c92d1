"""Brings a database to the schema of this version, or refuses one that is newer."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection

from autotune.errors import Unavailable
from autotune.storage.database import Database

HEAD = "r0002"  # the newest revision in migrations/versions
VERSION_TABLE = "autotune_schema_version"  # not alembic_version: Optuna's tables claim that name
_LOCK = 0x6175746F  # any number; "auto" in ASCII
_SCRIPTS = Path(__file__).parent / "migrations"


def upgrade(database: Database) -> None:
    """All of it or nothing, in one transaction; processes that start together wait for one another.

    Raises Unavailable for a database that a newer version of this product has written.
    """
    with database.reading() as session:
        if version(session.connection()) == HEAD:
            return
    with database.changing_schema() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        found = version(connection)
        if found is not None and found not in _known():
            raise Unavailable(
                f"the database has schema {found}, which is newer than this version's {HEAD}; "
                "install the version that wrote it, or use another database"
            )
        command.upgrade(config(connection), "head")


def version(connection: Connection) -> str | None:
    """The revision that the database is at; None for one without our tables."""
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def config(connection: Connection) -> Config:
    """Alembic on this connection, within its transaction."""
    settings = Config()
    settings.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    settings.attributes["connection"] = connection
    return settings


def _known() -> set[str]:
    return {path.name.split("_")[0] for path in (_SCRIPTS / "versions").glob("r*.py")}
