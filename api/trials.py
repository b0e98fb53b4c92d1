"""Trials of a study: list, look at, log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from api.errors import declared
from api.parts import Given
from api.route_types import Limit, Offset, StudyId, TrialNumber
from api.schemas import TrialDetail, TrialList, trial_detail, trial_line
from autotune.domain.candidate import Candidate
from autotune.domain.failure import FailureClass
from autotune.domain.study import Study
from autotune.domain.trial import StudyPhase, Trial, TrialState
from autotune.engine.ports import StudyStore, TrialFilter
from autotune.engine.study_loop import attempt_uid
from autotune.errors import NotFound

router = APIRouter(prefix="/api/v1/studies/{study_id}/trials", tags=["trials"])

LIVE_TAIL = 64_000  # bytes of the log of a running server: some 600 lines


@router.get("", responses=declared(404))
def listing(
    study_id: StudyId,
    parts: Given,
    state: Annotated[TrialState | None, Query()] = None,
    phase: Annotated[StudyPhase | None, Query()] = None,
    failure_class: Annotated[FailureClass | None, Query()] = None,
    feasible: Annotated[bool | None, Query(description="Whether the trial meets the SLA.")] = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> TrialList:
    """Trials by number, each in short."""
    where = TrialFilter(state=state, phase=phase, failure_class=failure_class, feasible=feasible)
    page = parts.store.trials(study_id, where, offset, limit)
    baseline = _baseline(parts.store, study_id)
    return TrialList(
        items=tuple(trial_line(trial, baseline) for trial in page.items),
        total=page.total,
        offset=offset,
        limit=limit,
    )


@router.get("/{number}", responses=declared(404))
def look(study_id: StudyId, number: TrialNumber, parts: Given) -> TrialDetail:
    """One trial with everything that is known about it."""
    attempts = parts.store.attempts(study_id, number)
    return trial_detail(parts.store.trial(study_id, number), _baseline(parts.store, study_id), attempts)


@router.get("/{number}/log", response_class=PlainTextResponse, responses=declared(404, text=True))
def log(study_id: StudyId, number: TrialNumber, parts: Given) -> PlainTextResponse:
    """The end of the server's log: of a finished trial as stored, of a running one as it stands now."""
    trial = parts.store.trial(study_id, number)
    if trial.state is TrialState.RUNNING:
        text = _live_log(parts.settings.directory.attempts, parts.store.study(study_id), trial)
    else:
        text = trial.log_tail or (trial.failure.log_tail if trial.failure else "")
    return PlainTextResponse(text)


def _baseline(store: StudyStore, study_id: int) -> Candidate:
    """What the gate launches first; before that, the space's baseline as it is written."""
    try:
        first = store.trial(study_id, 0)
    except NotFound:
        return Candidate(values=store.space_of(study_id).complete({}))
    return first.candidate if first.is_baseline else Candidate(values=store.space_of(study_id).complete({}))


def _live_log(attempts: Path, study: Study, trial: Trial) -> str:
    """Empty where the attempt runs on another host: its log arrives with its outcome."""
    folder = attempts / attempt_uid(study, trial.number, trial.attempt)
    tails = [(role, _tail(folder / f"{role}.log")) for role in trial.plan.roles]
    if len(tails) == 1:
        return tails[0][1]
    return "\n".join(f"==> {role} <==\n{text}" for role, text in tails if text)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LIVE_TAIL))
            return file.read(LIVE_TAIL).decode(errors="replace")
    except OSError:
        return ""
