"""Connections and transactions: how the database is opened, and what becomes of its errors."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlmodel import Session, create_engine, select

from autotune.errors import InvalidRequest, Unavailable
from autotune.storage.schema import EventCounterRow

BUSY_TIMEOUT_S = 15.0  # longest wait for another process's write; ours take milliseconds
COUNTER = 1  # the id of the only row of event_counter
_WRITES = "autotune_writes"  # execution option: this transaction will write

_SENTENCES = {
    "database is locked": "the database is busy: another process has been writing to it for too long",
    "database or disk is full": "the disk that holds the database is full; nothing was stored",
    "file is not a database": "the file is not a database of this product",
    "unable to open database file": "the database file cannot be opened; does its folder exist and may we write there",
    "attempt to write a readonly database": "the database file may not be written to",
    "database disk image is malformed": "the database file is damaged; restore it from a backup",
    "disk i/o error": "the disk that holds the database reports an error",
}


class Database:
    """An engine and its transactions. Thread-safe; each transaction has a session of its own."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._writer = engine.execution_options(**{_WRITES: True})
        # A reading transaction of SQLite sees one state throughout; PostgreSQL must be asked for it.
        self._reader = (
            engine.execution_options(isolation_level="REPEATABLE READ")
            if engine.dialect.name == "postgresql"
            else engine
        )
        # SQLite lets one writer in and makes the others sleep for up to 100 ms at a time: within one process
        # a lock hands over at once.
        self._writing = threading.Lock()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A consistent view; never waits for a writer."""
        with _answering(self.engine), Session(self._reader) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction, alone: committed at the end of the block, rolled back when it raises."""
        with _answering(self.engine), self._writing, Session(self._writer, expire_on_commit=False) as session:
            session.exec(select(EventCounterRow).where(EventCounterRow.id == COUNTER).with_for_update()).one()
            yield session
            session.commit()

    @contextmanager
    def changing_schema(self) -> Iterator[Connection]:
        """One transaction, alone, on tables that may not exist yet."""
        with _answering(self.engine), self._writing, self._writer.begin() as connection:
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def connect(url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Database:
    """The database at an SQLAlchemy URL; nothing is read or written yet.

    Raises InvalidRequest for a URL that makes no sense, or whose driver is not installed.
    """
    try:
        address = make_url(url)
        _check(address)
        engine = create_engine(address, pool_pre_ping=address.get_backend_name() != "sqlite")
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise InvalidRequest(f"the database URL cannot be used: {error}") from error
    if engine.dialect.name == "sqlite":
        _tame_sqlite(engine, busy_timeout_s)
    return Database(engine)


def _check(address: URL) -> None:
    if address.get_backend_name() == "sqlite" and address.database in (None, "", ":memory:"):
        raise InvalidRequest("a database in memory is lost at every restart; give a file: sqlite:///path/autotune.db")


def _tame_sqlite(engine: Engine, busy_timeout_s: float) -> None:
    """Write-ahead log, durable at every commit, and transactions that begin where we say so."""

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
        # Python's driver would begin a transaction by itself, at a moment of its own choice.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {round(busy_timeout_s * 1000)}")
        _write_ahead(connection, busy_timeout_s)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        # A transaction that reads first and writes later fails at once when another has written in between;
        # taking the write lock at the start waits instead.
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _write_ahead(connection: sqlite3.Connection, patience_s: float) -> None:
    """Two that switch a new file at once would wait for each other: SQLite refuses one, without its timeout."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextmanager
def _answering(engine: Engine) -> Iterator[None]:
    """Turns errors of the database, not of our statements, into a sentence."""
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        if not _is_ours_to_tell(error):
            raise
        raise Unavailable(_sentence(str(error.orig), engine)) from error
    except sqlite3.Error as error:  # from the listeners, which SQLAlchemy does not wrap
        raise Unavailable(_sentence(str(error), engine)) from error
    except PoolTimeoutError as error:
        raise Unavailable("too many requests wait for the database") from error


def _is_ours_to_tell(error: DBAPIError) -> bool:
    """The disk, the file and the server fail as these; a mistake in a statement as another class."""
    plain = isinstance(error.orig, sqlite3.DatabaseError) and type(error.orig) is sqlite3.DatabaseError
    return plain or isinstance(error, OperationalError) or error.connection_invalidated


def _sentence(text: str, engine: Engine) -> str:
    where = engine.url.render_as_string(hide_password=True)
    for known, sentence in _SENTENCES.items():
        if known in text.lower():
            return f"{sentence} ({where})"
    reason = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return f"the database does not answer: {reason} ({where})"
