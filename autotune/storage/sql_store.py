"""The StudyStore on SQL: SQLite by default, PostgreSQL by its URL."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, func
from sqlalchemy import select as select_columns
from sqlmodel import Session, col, select, update

from autotune.domain.device import DeviceLease, Inventory, Placement, Quarantine
from autotune.domain.failure import Failure
from autotune.domain.job import TrialOutcome
from autotune.domain.objective import Verdict
from autotune.domain.space import SearchSpace
from autotune.domain.study import Study, StudySpec, StudyState
from autotune.domain.trial import Attempt, NewTrial, StudyPhase, Trial, TrialState
from autotune.engine.ports import ANY_TRIAL, Event, Page, TrialBrief, TrialFilter
from autotune.errors import Conflict, InvalidRequest, NotFound
from autotune.storage import device_rows, journal, leases, migrate, rows, trial_moves
from autotune.storage.database import BUSY_TIMEOUT_S, Database, connect
from autotune.storage.event_data import EventKind, study_data
from autotune.storage.schema import NAME_LENGTH, AttemptRow, IdempotencyRow, StudyRow, StudySpaceRow, TrialRow

MAX_INT = 2**31 - 1  # of an INTEGER column on PostgreSQL; no id or number is larger


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def open_store(
    url: str, now: Callable[[], datetime] = utc_now, busy_timeout_s: float = BUSY_TIMEOUT_S
) -> SqlStudyStore:
    """The store at a URL such as `sqlite:////data/autotune.db`, with its schema brought up to date.

    Several processes may open one database at once. Raises InvalidRequest for a URL that cannot be used, and
    Unavailable when the database does not answer, is something else, or is newer than this version.
    """
    database = connect(url, busy_timeout_s)
    try:
        migrate.upgrade(database)
    except BaseException:
        database.close()
        raise
    return SqlStudyStore(database, now)


class SqlStudyStore:
    """Implements `autotune.engine.ports.StudyStore`; adds `close`.

    Any method raises Unavailable when the database is locked for too long, full, or gone.
    """

    def __init__(self, database: Database, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._now = now

    def close(self) -> None:
        """Let go of all connections."""
        self._database.close()

    # --- studies ----------------------------------------------------------------------------

    def create_study(self, spec: StudySpec, space: SearchSpace, idempotency_key: str | None = None) -> Study:
        body = rows.to_json(spec)
        digest = hashlib.sha256(body.encode()).hexdigest()
        if idempotency_key is not None and not 0 < len(idempotency_key) <= NAME_LENGTH:
            raise InvalidRequest(f"an idempotency key has 1 to {NAME_LENGTH} characters")
        with self._database.writing() as session:
            if idempotency_key is not None:
                known = session.get(IdempotencyRow, idempotency_key)
                if known is not None:
                    if known.body_sha256 != digest:
                        raise Conflict("this idempotency key was used for another study")
                    return rows.study(_study(session, known.study_id))
            now = self._now()
            row = StudyRow(
                uid=uuid.uuid4().hex[:12],
                name=spec.name,
                state=StudyState.RUNNING.value,
                phase=StudyPhase.GATE.value,
                created_at=now,
                spec=body,
            )
            session.add(row)
            session.flush()
            assert row.id is not None
            session.add(StudySpaceRow(study_id=row.id, body=rows.to_json(space)))
            if idempotency_key is not None:
                session.add(IdempotencyRow(key=idempotency_key, body_sha256=digest, study_id=row.id, created_at=now))
            return _told(session, row, EventKind.STUDY_CREATED, now)

    def study(self, study_id: int) -> Study:
        with self._database.reading() as session:
            return rows.study(_study(session, study_id))

    def space_of(self, study_id: int) -> SearchSpace:
        with self._database.reading() as session:
            _study(session, study_id)
            body = session.get_one(StudySpaceRow, study_id).body
        return SearchSpace.model_validate_json(body)

    def studies(self, state: StudyState | None = None, offset: int = 0, limit: int = 100) -> Page[Study]:
        where = [] if state is None else [col(StudyRow.state) == state.value]
        with self._database.reading() as session:
            total = session.exec(select(func.count()).select_from(StudyRow).where(*where)).one()
            newest = select(StudyRow).where(*where).order_by(col(StudyRow.id).desc())
            found = session.exec(newest.offset(min(offset, MAX_INT)).limit(min(limit, MAX_INT))).all()
        return Page(items=tuple(rows.study(row) for row in found), total=total)

    def set_phase(self, study_id: int, phase: StudyPhase) -> None:
        with self._database.writing() as session:
            row = _study(session, study_id)
            if row.state != StudyState.RUNNING:
                raise Conflict(f"study {study_id} is {row.state}: its phase stays {row.phase}")
            if row.phase != phase:
                _set(session, row, phase=phase.value)
                _told(session, row, EventKind.STUDY_PHASE, self._now())

    def finish_study(self, study_id: int, state: StudyState, finding: str) -> Study:
        if not state.is_finished:
            raise InvalidRequest(f"{state} is not a state in which a study ends")
        with self._database.writing() as session:
            row = _study(session, study_id)
            if row.state != StudyState.RUNNING:
                raise Conflict(f"study {study_id} is {row.state} already")
            now = self._now()
            waiting = (col(TrialRow.study_id) == study_id, col(TrialRow.state) == TrialState.WAITING.value)
            for trial in session.exec(select(TrialRow).where(*waiting).order_by(col(TrialRow.number))).all():
                trial_moves.cancel(session, trial, now)
            _set(session, row, state=state.value, finding=finding, finished_at=now)
            return _told(session, row, EventKind.STUDY_FINISHED, now)

    def resume_study(self, study_id: int) -> Study:
        with self._database.writing() as session:
            row = _study(session, study_id)
            if row.state not in (StudyState.CANCELLED, StudyState.FAILED):
                raise Conflict(f"study {study_id} is {row.state}: only a cancelled or failed study can be resumed")
            _set(session, row, state=StudyState.RUNNING.value, finding=None, finished_at=None)
            return _told(session, row, EventKind.STUDY_RESUMED, self._now())

    # --- trials -----------------------------------------------------------------------------

    def add_trial(self, study_id: int, trial: NewTrial) -> Trial:
        with self._database.writing() as session:
            return trial_moves.add(session, _study(session, study_id), trial, self._now())

    def start_attempt(self, study_id: int, number: int, uid: str, placement: Placement | None = None) -> Trial:
        with self._database.writing() as session:
            row = _trial(session, study_id, number)
            return trial_moves.start(session, _study(session, study_id), row, uid, self._now(), placement)

    def finish_trial(
        self, study_id: int, number: int, attempt: int, outcome: TrialOutcome, verdict: Verdict | None
    ) -> Trial:
        with self._database.writing() as session:
            row = _trial(session, study_id, number)
            return trial_moves.finish(session, row, attempt, outcome, verdict, now=self._now())

    def lose_attempt(self, study_id: int, number: int, attempt: int, failure: Failure) -> Trial:
        with self._database.writing() as session:
            return trial_moves.lose(session, _trial(session, study_id, number), attempt, failure, self._now())

    def attempts(self, study_id: int, number: int) -> Sequence[Attempt]:
        with self._database.reading() as session:
            row = _trial(session, study_id, number)
            of_trial = select(AttemptRow).where(col(AttemptRow.trial_id) == row.id)
            found = session.exec(of_trial.order_by(col(AttemptRow.attempt))).all()
        trial = rows.trial(row)
        return [rows.attempt(one, trial) for one in found]

    def cancel_trial(self, study_id: int, number: int) -> Trial:
        with self._database.writing() as session:
            return trial_moves.cancel(session, _trial(session, study_id, number), self._now())

    def trial(self, study_id: int, number: int) -> Trial:
        with self._database.reading() as session:
            row = _trial(session, study_id, number)
        return rows.trial(row)

    def trials(
        self, study_id: int, where: TrialFilter = ANY_TRIAL, offset: int = 0, limit: int | None = None
    ) -> Page[Trial]:
        wanted = _conditions(study_id, where)
        with self._database.reading() as session:
            _study(session, study_id)
            total = session.exec(select(func.count()).select_from(TrialRow).where(*wanted)).one()
            # The inner query reads nothing but ix_trial_filter: rows that are skipped or do not match cost little.
            page = select(TrialRow.id).where(*wanted).order_by(col(TrialRow.number)).offset(min(offset, MAX_INT))
            ids = page if limit is None else page.limit(min(limit, MAX_INT))
            ascending = select(TrialRow).where(col(TrialRow.id).in_(ids)).order_by(col(TrialRow.number))
            found = session.exec(ascending).all()
        return Page(items=tuple(rows.trial(row) for row in found), total=total)

    def briefs(self, study_ids: Sequence[int]) -> Mapping[int, Sequence[TrialBrief]]:
        names = ("study_id", "number", "state", "phase", "label", "objective", "feasible")
        columns = [col(getattr(TrialRow, name)) for name in names]
        wanted = col(TrialRow.study_id).in_([i for i in study_ids if 0 < i <= MAX_INT])
        with self._database.reading() as session:
            found = session.execute(select_columns(*columns).where(wanted).order_by(col(TrialRow.number))).all()
        briefs: dict[int, list[TrialBrief]] = {}
        for study_id, *values in found:
            briefs.setdefault(study_id, []).append(rows.brief(dict(zip(names[1:], values, strict=True))))
        return briefs

    # --- devices ------------------------------------------------------------------------------

    def device_leases(self) -> Sequence[DeviceLease]:
        with self._database.reading() as session:
            return device_rows.leases(session)

    def release_device(self, lease: DeviceLease) -> None:
        with self._database.writing() as session:
            device_rows.release(session, lease)

    def quarantine_device(self, quarantine: Quarantine) -> None:
        with self._database.writing() as session:
            device_rows.set_aside(session, quarantine)

    def quarantines(self) -> Sequence[Quarantine]:
        with self._database.reading() as session:
            return device_rows.quarantines(session)

    def lift_quarantine(self, host: str, device: int) -> Quarantine:
        with self._database.writing() as session:
            return device_rows.lift(session, host, device, self._now())

    def put_inventory(self, inventory: Inventory) -> None:
        with self._database.writing() as session:
            device_rows.put_inventory(session, inventory)

    def inventories(self) -> Sequence[Inventory]:
        with self._database.reading() as session:
            return device_rows.inventories(session)

    # --- events and leases --------------------------------------------------------------------

    def events(self, after: int, limit: int = 500) -> Sequence[Event]:
        with self._database.reading() as session:
            return journal.read(session, min(after, MAX_INT), min(limit, MAX_INT))

    def last_event(self) -> int:
        with self._database.reading() as session:
            return journal.last(session)

    def hold_lease(self, name: str, owner: str, ttl_s: float) -> bool:
        with self._database.writing() as session:
            return leases.hold(session, name, owner, self._now(), ttl_s)

    def release_lease(self, name: str, owner: str) -> None:
        with self._database.writing() as session:
            leases.release(session, name, owner)

    def lease_owner(self, name: str) -> str | None:
        with self._database.reading() as session:
            return leases.owner(session, name, self._now())


def _study(session: Session, study_id: int) -> StudyRow:
    row = session.get(StudyRow, study_id) if 0 < study_id <= MAX_INT else None
    if row is None:
        raise NotFound(f"there is no study {study_id}")
    return row


def _trial(session: Session, study_id: int, number: int) -> TrialRow:
    _study(session, study_id)
    where = (col(TrialRow.study_id) == study_id, col(TrialRow.number) == number)
    row = session.exec(select(TrialRow).where(*where)).first() if 0 <= number <= MAX_INT else None
    if row is None:
        raise NotFound(f"study {study_id} has no trial {number}")
    return row


def _conditions(study_id: int, where: TrialFilter) -> list[ColumnElement[bool]]:
    wanted = [col(TrialRow.study_id) == study_id]
    if where.state is not None:
        wanted.append(col(TrialRow.state) == where.state.value)
    if where.phase is not None:
        wanted.append(col(TrialRow.phase) == where.phase.value)
    if where.failure_class is not None:
        wanted.append(col(TrialRow.failure_class) == where.failure_class)
    if where.feasible is not None:
        wanted.append(col(TrialRow.feasible) == where.feasible)
    return wanted


def _set(session: Session, row: StudyRow, **values: Any) -> None:
    """Only where the study is still in the state that was read."""
    same = (col(StudyRow.id) == row.id, col(StudyRow.state) == row.state)
    if session.exec(update(StudyRow).where(*same).values(**values)).rowcount != 1:
        raise Conflict(f"study {row.id} was changed by somebody else at the same time")


def _told(session: Session, row: StudyRow, kind: EventKind, now: datetime) -> Study:
    study = rows.study(row)
    journal.append(session, kind, at=now, study_id=study.id, data=study_data(study))
    return study
