"""Every change of a stored trial: one compare-and-set, one event, in the caller's transaction."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select, update

from autotune.domain.device import Placement
from autotune.domain.failure import Failure
from autotune.domain.job import TrialOutcome
from autotune.domain.objective import Verdict
from autotune.domain.study import StudyState
from autotune.domain.trial import LOST, NewTrial, Trial, TrialState, may_become
from autotune.errors import Conflict, TrialAlreadyFinished
from autotune.storage import device_rows, journal, rows
from autotune.storage.event_data import EventKind, trial_data
from autotune.storage.schema import AttemptRow, StudyRow, TrialRow


def add(session: Session, study: StudyRow, new: NewTrial, now: datetime) -> Trial:
    """A waiting trial under the study's next number."""
    if study.state != StudyState.RUNNING:
        raise Conflict(f"study {study.id} is {study.state}: no trial can be added")
    assert study.id is not None
    row = TrialRow(
        study_id=study.id,
        number=study.next_number,
        state=TrialState.WAITING.value,
        phase=new.phase.value,
        label=new.label,
        created_at=now,
        planned=rows.to_json(new),
    )
    study.next_number += 1
    session.add(row)
    session.flush()
    return _told(session, row, EventKind.TRIAL_ADDED, now)


def start(
    session: Session, study: StudyRow, row: TrialRow, uid: str, now: datetime, placement: Placement | None = None
) -> Trial:
    """The next attempt of a waiting trial, with the devices that it gets."""
    _check(row, TrialState.RUNNING)
    if study.state != StudyState.RUNNING:
        raise Conflict(f"study {study.id} is {study.state}: no attempt can be started")
    if session.exec(select(AttemptRow.id).where(AttemptRow.uid == uid)).first() is not None:
        raise Conflict(f"the attempt {uid} was started before")
    assert row.id is not None
    _set(session, row, state=TrialState.RUNNING.value, attempt=row.attempt + 1, started_at=now)
    session.add(AttemptRow(trial_id=row.id, attempt=row.attempt, uid=uid, started_at=now))
    if placement is not None:
        device_rows.take(session, placement, uid, now)
    return _told(session, row, EventKind.TRIAL_STARTED, now)


def finish(
    session: Session, row: TrialRow, attempt: int, outcome: TrialOutcome, verdict: Verdict | None, *, now: datetime
) -> Trial:
    """The one result of a running trial."""
    state = TrialState.FAILED if outcome.failure else TrialState.MEASURED
    _check(row, state)
    current = _attempt(session, row, attempt)
    if current.uid != outcome.uid:
        raise Conflict(f"{_name(row)} runs as {current.uid}; the outcome is of {outcome.uid}")
    _set(
        session,
        row,
        state=state.value,
        finished_at=now,
        failure_class=outcome.failure.failure_class.value if outcome.failure else None,
        feasible=verdict.feasible if verdict else None,
        objective=verdict.objective if verdict else None,
        verdict=rows.to_json(verdict) if verdict else None,
        outcome=rows.to_json(outcome),
    )
    _end(session, current, state.value, now)
    return _told(session, row, EventKind.TRIAL_FINISHED, now)


def lose(session: Session, row: TrialRow, attempt: int, failure: Failure, now: datetime) -> Trial:
    """Back to waiting, with the attempt and its failure kept."""
    _check(row, TrialState.WAITING)
    current = _attempt(session, row, attempt)
    _set(session, row, state=TrialState.WAITING.value, started_at=None)
    _end(session, current, LOST, now)
    current.failure = rows.to_json(failure)
    return _told(session, row, EventKind.ATTEMPT_LOST, now, failure)


def cancel(session: Session, row: TrialRow, now: datetime) -> Trial:
    """The end of a trial that nobody wants to know any more."""
    _check(row, TrialState.CANCELLED)
    if row.state == TrialState.RUNNING:
        _end(session, _attempt(session, row, row.attempt), TrialState.CANCELLED.value, now)
    _set(session, row, state=TrialState.CANCELLED.value, finished_at=now)
    return _told(session, row, EventKind.TRIAL_CANCELLED, now)


def _check(row: TrialRow, state: TrialState) -> None:
    old = TrialState(row.state)
    if old.is_finished:
        raise TrialAlreadyFinished(f"{_name(row)} is {old} already")
    if not may_become(old, state):
        raise Conflict(f"{_name(row)} is {old} and cannot become {state}")


def _attempt(session: Session, row: TrialRow, attempt: int) -> AttemptRow:
    if row.attempt != attempt:
        raise Conflict(f"{_name(row)} is at attempt {row.attempt}, not {attempt}")
    where = (col(AttemptRow.trial_id) == row.id, col(AttemptRow.attempt) == attempt)
    return session.exec(select(AttemptRow).where(*where)).one()


def _end(session: Session, attempt: AttemptRow, ended: str, now: datetime) -> None:
    device_rows.end(session, attempt.uid, now)
    attempt.ended = ended
    attempt.ended_at = now


def _set(session: Session, row: TrialRow, **values: Any) -> None:
    """Only where state and attempt are still what was read."""
    same = (col(TrialRow.id) == row.id, col(TrialRow.state) == row.state, col(TrialRow.attempt) == row.attempt)
    if session.exec(update(TrialRow).where(*same).values(**values)).rowcount != 1:
        raise Conflict(f"{_name(row)} was changed by somebody else at the same time")


def _told(session: Session, row: TrialRow, kind: EventKind, now: datetime, lost: Failure | None = None) -> Trial:
    trial = rows.trial(row)
    journal.append(session, kind, at=now, study_id=row.study_id, trial_number=row.number, data=trial_data(trial, lost))
    return trial


def _name(row: TrialRow) -> str:
    return f"trial {row.number} of study {row.study_id}"
