"""The schema comes from migrations alone; they agree with the tables, go back, and refuse what is newer."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory

from autotune.errors import Unavailable
from autotune.storage import migrate
from autotune.storage.database import Database, connect
from autotune.storage.sql_store import open_store
from tests.builders import space, study_spec


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return {name for name in names if not name.startswith("sqlite_")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "autotune.db"


@pytest.fixture
def database(url: str) -> Database:
    return connect(url)


def test_migrations_and_tables_agree(database: Database) -> None:
    migrate.upgrade(database)
    with database.changing_schema() as connection:
        command.check(migrate.config(connection))  # raises when autogenerate finds a difference
    database.close()


def test_the_head_that_the_code_names_is_the_newest_script(database: Database) -> None:
    with database.changing_schema() as connection:
        assert ScriptDirectory.from_config(migrate.config(connection)).get_current_head() == migrate.HEAD
    database.close()


def test_down_and_up_again(url: str, path: Path, database: Database) -> None:
    migrate.upgrade(database)
    assert {"study", "trial", "attempt", "event", "lease", "idempotency"} < tables(path)
    with database.changing_schema() as connection:
        command.downgrade(migrate.config(connection), "base")
    assert tables(path) == {migrate.VERSION_TABLE}
    database.close()
    store = open_store(url)
    assert store.create_study(study_spec(), space()).id == 1
    store.close()


def test_a_database_of_the_first_revision_gets_devices_and_keeps_its_studies(url: str, path: Path) -> None:
    store = open_store(url)
    made = store.create_study(study_spec(), space())
    store.close()
    database = connect(url)
    with database.changing_schema() as connection:
        command.downgrade(migrate.config(connection), "r0001")
    database.close()
    assert "device_lease" not in tables(path)
    store = open_store(url)
    assert store.study(made.id) == made
    assert store.device_leases() == []
    store.close()


def test_upgrading_twice_changes_nothing(url: str) -> None:
    store = open_store(url)
    made = store.create_study(study_spec(), space())
    store.close()
    store = open_store(url)
    assert store.study(made.id) == made
    store.close()


def test_a_newer_database_is_refused_and_left_alone(url: str, path: Path) -> None:
    open_store(url).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {migrate.VERSION_TABLE} SET version_num = 'r9999'")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Unavailable, match=r"r9999, which is newer than this version's r0002"):
        open_store(url)
    assert path.read_bytes() == before


def test_tables_of_others_stay_as_they_are(url: str, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        connection.execute("INSERT INTO alembic_version VALUES ('theirs')")
    connection.close()
    open_store(url).close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("theirs",)]
    connection.close()


def test_a_failed_upgrade_leaves_no_table(url: str, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE lease (somebody TEXT)")  # stands in the way of the last but one table
    connection.close()
    with pytest.raises(Unavailable, match="lease already exists"):
        open_store(url)
    assert tables(path) == {"lease"}


def test_threads_that_open_a_new_database_together(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: open_store(url), range(4)))
    ids = [store.create_study(study_spec(), space()).id for store in stores]
    assert ids == [1, 2, 3, 4]
    for store in stores:
        store.close()


def test_processes_that_open_a_new_database_together(url: str) -> None:
    program = "import sys; from autotune.storage.sql_store import open_store; open_store(sys.argv[1]).close()"
    running = [
        subprocess.Popen([sys.executable, "-c", program, url], stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    open_store(url).close()
