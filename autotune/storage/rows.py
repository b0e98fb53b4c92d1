"""Rows to values and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from autotune.domain.failure import Failure
from autotune.domain.job import TrialOutcome
from autotune.domain.objective import Verdict
from autotune.domain.study import Study, StudySpec, StudyState
from autotune.domain.trial import Attempt, NewTrial, StudyPhase, Trial, TrialState, attempt_of
from autotune.engine.ports import TrialBrief
from autotune.storage.schema import AttemptRow, StudyRow, TrialRow


def to_json(value: BaseModel) -> str:
    """The text that is stored for a value."""
    return value.model_dump_json()


def study(row: StudyRow) -> Study:
    """The study of a stored row."""
    assert row.id is not None
    return Study(
        id=row.id,
        uid=row.uid,
        spec=StudySpec.model_validate_json(row.spec),
        state=StudyState(row.state),
        phase=StudyPhase(row.phase),
        finding=row.finding,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )


def trial(row: TrialRow) -> Trial:
    """The trial of a stored row."""
    planned = NewTrial.model_validate_json(row.planned)
    outcome = None if row.outcome is None else TrialOutcome.model_validate_json(row.outcome)
    return Trial(
        study_id=row.study_id,
        number=row.number,
        state=TrialState(row.state),
        phase=planned.phase,
        label=planned.label,
        proposal=planned.proposal,
        candidate=planned.candidate,
        plan=planned.plan,
        repairs=planned.repairs,
        warnings=planned.warnings,
        stall_limit_s=planned.stall_limit_s,
        attempt=row.attempt,
        measurement=outcome.measurement if outcome else None,
        failure=outcome.failure if outcome else None,
        verdict=None if row.verdict is None else Verdict.model_validate_json(row.verdict),
        provenance=outcome.provenance if outcome else None,
        durations_s=outcome.durations_s if outcome else {},
        log_tail=outcome.log_tail if outcome else "",
        effective=outcome.effective if outcome else {},
        counted=outcome.counted if outcome else None,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def attempt(row: AttemptRow, of: Trial) -> Attempt:
    """One launch of the trial; a lost one has a failure of its own."""
    lost = None if row.failure is None else Failure.model_validate_json(row.failure)
    return attempt_of(of, row.attempt, row.uid, (row.started_at, row.ended_at), row.ended, lost)


def brief(columns: Mapping[str, Any]) -> TrialBrief:
    """A trial in short, from its short columns."""
    return TrialBrief.model_validate(columns)
