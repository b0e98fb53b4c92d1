"""How the database is opened, and which sentence comes of which trouble."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError

from autotune.errors import InvalidRequest, Unavailable
from autotune.storage.database import connect
from autotune.storage.sql_store import SqlStudyStore, open_store
from tests.builders import new_trial, space, study_spec


@contextmanager
def other_process(url: str, begin: str) -> Iterator[sqlite3.Connection]:
    """A connection that is none of the store's."""
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute(begin)
    try:
        yield connection
    finally:
        connection.execute("ROLLBACK")
        connection.close()


def test_commits_are_durable_and_references_are_checked(sql_store: SqlStudyStore) -> None:
    with sql_store._database.reading() as session:
        found = {
            name: session.connection().exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    with pytest.raises(IntegrityError), sql_store._database.writing() as session:
        session.connection().execute(text("INSERT INTO study_space (study_id, body) VALUES (99, '{}')"))


def test_many_that_open_a_new_file_in_the_same_moment(tmp_path: Path) -> None:
    """The switch to the write-ahead log knows no timeout of its own; here one in thirty would fail."""
    threads = 6

    def opened(turn: int, ready: threading.Barrier) -> None:
        database = connect(f"sqlite:///{tmp_path}/{turn}.db")
        ready.wait()
        with database.reading() as session:
            session.connection()
        database.close()

    with ThreadPoolExecutor(threads) as pool:
        for turn in range(60):
            ready = threading.Barrier(threads)
            for done in [pool.submit(opened, turn, ready) for _ in range(threads)]:
                done.result()


def test_readers_do_not_wait_for_a_writer(sql_store: SqlStudyStore, url: str) -> None:
    made = sql_store.create_study(study_spec(), space())
    with other_process(url, "BEGIN IMMEDIATE"):
        assert sql_store.study(made.id) == made
        assert sql_store.trials(made.id).total == 0
        assert sql_store.last_event() == 1


def test_a_writer_waits_for_another_process(sql_store: SqlStudyStore, url: str) -> None:
    done = threading.Event()

    def write() -> None:
        sql_store.create_study(study_spec(), space())
        done.set()

    writer = threading.Thread(target=write)
    with other_process(url, "BEGIN IMMEDIATE"):
        writer.start()
        assert not done.wait(0.2)
    writer.join(60)
    assert done.is_set()


def test_a_database_that_is_locked_for_too_long(url: str) -> None:
    store = open_store(url, busy_timeout_s=0.05)
    with other_process(url, "BEGIN IMMEDIATE"), pytest.raises(Unavailable, match="another process has been writing"):
        store.create_study(study_spec(), space())
    assert store.create_study(study_spec(), space()).id == 1
    store.close()


def test_a_full_disk_loses_nothing_that_was_stored(url: str) -> None:
    store = open_store(url)
    made = store.create_study(study_spec(), space())
    store._database.engine.dispose()

    @event.listens_for(store._database.engine, "connect")
    def _no_room(connection: sqlite3.Connection, _entry: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size as the least

    def fill() -> None:
        for _ in range(1000):
            store.add_trial(made.id, new_trial())

    with pytest.raises(Unavailable, match="the disk that holds the database is full"):
        fill()
    stored = store.trials(made.id).total
    assert store.study(made.id) == made
    assert store.last_event() == stored + 1
    store.close()


def test_a_failed_transaction_leaves_neither_state_nor_a_gap_in_the_log(sql_store: SqlStudyStore) -> None:
    made = sql_store.create_study(study_spec(), space())
    with sql_store._database.writing() as session:  # the event after next cannot be stored
        session.connection().execute(
            text("CREATE TRIGGER full BEFORE INSERT ON event WHEN NEW.seq > 2 BEGIN SELECT RAISE(ABORT, 'no'); END")
        )
    sql_store.add_trial(made.id, new_trial())
    with pytest.raises(IntegrityError):
        sql_store.add_trial(made.id, new_trial())
    with sql_store._database.writing() as session:
        session.connection().execute(text("DROP TRIGGER full"))
    assert sql_store.trials(made.id).total == 1
    assert sql_store.add_trial(made.id, new_trial()).number == 1
    assert [e.seq for e in sql_store.events(0)] == [1, 2, 3]


@pytest.mark.parametrize("content", [b"this is no database, " * 100, b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(content)
    with pytest.raises(Unavailable, match=r"not a database of this product.*notes\.db"):
        open_store(f"sqlite:///{path}")
    assert path.read_bytes() == content


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does its folder exist"):
        open_store(f"sqlite:///{tmp_path}/nowhere/autotune.db")


def test_a_damaged_database(url: str, tmp_path: Path) -> None:
    store = open_store(url)
    made = store.create_study(study_spec(), space())
    for _ in range(20):
        store.add_trial(made.id, new_trial())
    store.close()
    path = tmp_path / "autotune.db"
    content = bytearray(path.read_bytes())
    with sqlite3.connect(path) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trial'").fetchone()
    connection.close()
    content[4096 * (page - 1) : 4096 * page] = b"\xff" * 4096
    path.write_bytes(content)
    store = open_store(url)
    with pytest.raises(Unavailable, match="damaged"):
        store.trials(made.id)
    store.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="give a file"):
        connect(url)


@pytest.mark.parametrize(
    "url", ["", "autotune.db", "nosuchdatabase://host/name", "postgresql+nosuchdriver://host/name"]
)
def test_a_url_that_makes_no_sense(url: str) -> None:
    with pytest.raises(InvalidRequest, match="the database URL cannot be used"):
        connect(url)


def test_too_many_requests_at_once(url: str) -> None:
    store = open_store(url)
    engine = store._database.engine
    engine.pool._timeout = 0.05  # type: ignore[attr-defined]  # thirty seconds would be a long test
    held = [engine.connect() for _ in range(15)]
    with pytest.raises(Unavailable, match="too many requests"):
        store.last_event()
    for connection in held:
        connection.close()
    assert store.last_event() == 0
    store.close()
