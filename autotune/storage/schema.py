"""The tables. Rows never leave this package; `autotune.storage.rows` turns them into values.

Values of the domain are kept as JSON text: the same on every dialect, and read back exactly as written
(a binary JSON column may reorder keys or change `1.0` into `1`). What is filtered or sorted by has a column
of its own. State and phase are text, so that a database can be read with no code at hand.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlmodel import Field, SQLModel

NAME_LENGTH = 200
HASH_LENGTH = 64


class UtcTime(TypeDecorator[datetime]):
    """A point in time, stored in UTC and always read with its zone; SQLite itself knows no zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


class Row(SQLModel):
    """Base of our rows: metadata of our own, so that nothing else ever becomes part of the schema."""

    metadata = MetaData()


class StudyRow(Row, table=True):
    """`next_number` is the number of the study's next trial."""

    __tablename__ = "study"

    id: int | None = Field(default=None, sa_column=Column(Integer, primary_key=True, autoincrement=True))
    uid: str = Field(sa_column=Column(String(32), nullable=False, unique=True))
    name: str = Field(sa_column=Column(String(NAME_LENGTH), nullable=False))
    state: str = Field(sa_column=Column(String(16), nullable=False, index=True))
    phase: str = Field(sa_column=Column(String(16), nullable=False))
    next_number: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    created_at: datetime = Field(sa_column=Column(UtcTime, nullable=False))
    finished_at: datetime | None = Field(default=None, sa_column=Column(UtcTime, nullable=True))
    finding: str | None = Field(default=None, sa_column=Column(Text, nullable=True))
    spec: str = Field(sa_column=Column(Text, nullable=False))


class StudySpaceRow(Row, table=True):
    """The search space as it was when its study was created: large, and seldom read."""

    __tablename__ = "study_space"

    study_id: int = Field(sa_column=Column(Integer, ForeignKey("study.id"), primary_key=True, autoincrement=False))
    body: str = Field(sa_column=Column(Text, nullable=False))


class TrialRow(Row, table=True):
    """`planned` is the NewTrial, `outcome` the TrialOutcome; the other columns repeat what is filtered by.

    The JSON comes last, so that a scan of the short columns reads no overflow pages.
    """

    __tablename__ = "trial"
    __table_args__ = (
        UniqueConstraint("study_id", "number", name="uq_trial_study_number"),
        # Covers every filter of a list: rows that do not match are never read.
        Index("ix_trial_filter", "study_id", "number", "state", "phase", "failure_class", "feasible"),
    )

    id: int | None = Field(default=None, sa_column=Column(Integer, primary_key=True, autoincrement=True))
    study_id: int = Field(sa_column=Column(Integer, ForeignKey("study.id"), nullable=False))
    number: int = Field(sa_column=Column(Integer, nullable=False))
    state: str = Field(sa_column=Column(String(16), nullable=False))
    phase: str = Field(sa_column=Column(String(16), nullable=False))
    label: str = Field(sa_column=Column(Text, nullable=False))
    attempt: int = Field(default=0, sa_column=Column(Integer, nullable=False))
    failure_class: str | None = Field(default=None, sa_column=Column(String(32), nullable=True))
    feasible: bool | None = Field(default=None, sa_column=Column(Boolean, nullable=True))
    objective: float | None = Field(default=None, sa_column=Column(Float, nullable=True))
    created_at: datetime = Field(sa_column=Column(UtcTime, nullable=False))
    started_at: datetime | None = Field(default=None, sa_column=Column(UtcTime, nullable=True))
    finished_at: datetime | None = Field(default=None, sa_column=Column(UtcTime, nullable=True))
    planned: str = Field(sa_column=Column(Text, nullable=False))
    verdict: str | None = Field(default=None, sa_column=Column(Text, nullable=True))
    outcome: str | None = Field(default=None, sa_column=Column(Text, nullable=True))


class AttemptRow(Row, table=True):
    """One launch of a trial; `ended` is how: `measured`, `failed`, `cancelled` or `lost`, None in flight.

    The unique `uid` is what keeps an attempt from being started twice, by whomever.
    """

    __tablename__ = "attempt"
    __table_args__ = (UniqueConstraint("trial_id", "attempt", name="uq_attempt_trial_attempt"),)

    id: int | None = Field(default=None, sa_column=Column(Integer, primary_key=True, autoincrement=True))
    trial_id: int = Field(sa_column=Column(Integer, ForeignKey("trial.id"), nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    uid: str = Field(sa_column=Column(String(NAME_LENGTH), nullable=False, unique=True))
    started_at: datetime = Field(sa_column=Column(UtcTime, nullable=False))
    ended_at: datetime | None = Field(default=None, sa_column=Column(UtcTime, nullable=True))
    ended: str | None = Field(default=None, sa_column=Column(String(16), nullable=True))
    failure: str | None = Field(default=None, sa_column=Column(Text, nullable=True))


class EventRow(Row, table=True):
    """The append-only log. `seq` is given out under the lock of `EventCounterRow`."""

    __tablename__ = "event"

    seq: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    at: datetime = Field(sa_column=Column(UtcTime, nullable=False))
    kind: str = Field(sa_column=Column(String(32), nullable=False))
    study_id: int = Field(sa_column=Column(Integer, ForeignKey("study.id"), nullable=False))
    trial_number: int | None = Field(default=None, sa_column=Column(Integer, nullable=True))
    data: str = Field(sa_column=Column(Text, nullable=False))


class EventCounterRow(Row, table=True):
    """One row: the last seq given out. Every write transaction locks it first, and so writes are serial.

    A sequence or AUTOINCREMENT would leave gaps after a rollback, and numbers committed out of order.
    """

    __tablename__ = "event_counter"

    id: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    last_seq: int = Field(sa_column=Column(Integer, nullable=False))


class LeaseRow(Row, table=True):
    """Who holds a named right, and until when."""

    __tablename__ = "lease"

    name: str = Field(sa_column=Column(String(NAME_LENGTH), primary_key=True))
    owner: str = Field(sa_column=Column(String(NAME_LENGTH), nullable=False))
    until: datetime = Field(sa_column=Column(UtcTime, nullable=False))


class DeviceLeaseRow(Row, table=True):
    """One device in the hands of one attempt; its key is what keeps a device from being given out twice.

    `ended_at`: the attempt is over, its memory may not be given back yet. `idle_mb` was in use before it.
    """

    __tablename__ = "device_lease"

    host: str = Field(sa_column=Column(String(NAME_LENGTH), primary_key=True))
    device: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    uid: str = Field(sa_column=Column(String(NAME_LENGTH), nullable=False, index=True))
    since: datetime = Field(sa_column=Column(UtcTime, nullable=False))
    idle_mb: int | None = Field(default=None, sa_column=Column(Integer, nullable=True))
    ended_at: datetime | None = Field(default=None, sa_column=Column(UtcTime, nullable=True))


class QuarantineRow(Row, table=True):
    """A device that gets no trial, and why."""

    __tablename__ = "quarantine"

    host: str = Field(sa_column=Column(String(NAME_LENGTH), primary_key=True))
    device: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    reason: str = Field(sa_column=Column(Text, nullable=False))
    since: datetime = Field(sa_column=Column(UtcTime, nullable=False))
    attempt: str | None = Field(default=None, sa_column=Column(String(NAME_LENGTH), nullable=True))


class InventoryRow(Row, table=True):
    """The devices of a host as the dispatcher last found them."""

    __tablename__ = "host_inventory"

    host: str = Field(sa_column=Column(String(NAME_LENGTH), primary_key=True))
    body: str = Field(sa_column=Column(Text, nullable=False))


class IdempotencyRow(Row, table=True):
    """A key that a client sent with a create, the hash of what it asked for, and what came of it."""

    __tablename__ = "idempotency"

    key: str = Field(sa_column=Column(String(NAME_LENGTH), primary_key=True))
    body_sha256: str = Field(sa_column=Column(String(HASH_LENGTH), nullable=False))
    study_id: int = Field(sa_column=Column(Integer, ForeignKey("study.id"), nullable=False))
    created_at: datetime = Field(sa_column=Column(UtcTime, nullable=False))
