"""A trial: one candidate to be measured, stored before it starts and finished exactly once.

waiting -> running -> measured | failed | cancelled;  running -> waiting when an attempt was lost to the
infrastructure;  waiting -> cancelled | failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from pydantic import Field

from autotune.domain.candidate import Candidate
from autotune.domain.effective import EffectiveConfig
from autotune.domain.failure import Failure
from autotune.domain.job import Provenance
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import LaunchPlan
from autotune.domain.measurement import Measurement
from autotune.domain.objective import Verdict
from autotune.domain.value import Value

MAX_ATTEMPTS = 3  # the first and two more: a fault that follows the trial over three launches is the trial's


LOST = "lost"  # how an attempt ends that does not end its trial


class TrialState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    MEASURED = "measured"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_finished(self) -> bool:
        return self in {TrialState.MEASURED, TrialState.FAILED, TrialState.CANCELLED}


_NEXT: Mapping[TrialState, frozenset[TrialState]] = {
    TrialState.WAITING: frozenset({TrialState.RUNNING, TrialState.FAILED, TrialState.CANCELLED}),
    TrialState.RUNNING: frozenset({TrialState.WAITING, TrialState.MEASURED, TrialState.FAILED, TrialState.CANCELLED}),
}


def may_become(old: TrialState, new: TrialState) -> bool:
    """Whether a trial may go from one state to the other."""
    return new in _NEXT.get(old, frozenset())


class StudyPhase(StrEnum):
    """What a trial is for, and how far its study has come."""

    GATE = "gate"
    RECIPES = "recipes"
    SEARCH = "search"
    CONFIRM = "confirm"


class NewTrial(Value):
    """What is committed before anything is launched.

    `proposal` is what the proposer asked for, `candidate` what the rules made of it. `label` tells trials of
    a phase apart: `baseline`, the recipe's name, `round-2`.
    """

    phase: StudyPhase
    label: str
    proposal: dict[str, KnobValue]
    candidate: Candidate
    plan: LaunchPlan
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    stall_limit_s: float | None = None


class Trial(Value):
    """A stored trial. Times are UTC."""

    study_id: int
    number: int
    state: TrialState
    phase: StudyPhase
    label: str
    proposal: dict[str, KnobValue]
    candidate: Candidate
    plan: LaunchPlan
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    stall_limit_s: float | None = None
    attempt: int = 0
    measurement: Measurement | None = None
    failure: Failure | None = None
    verdict: Verdict | None = None
    provenance: Provenance | None = None
    durations_s: dict[str, float] = Field(default_factory=dict)
    log_tail: str = ""
    effective: dict[str, EffectiveConfig] = Field(default_factory=dict)
    counted: Candidate | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def is_baseline(self) -> bool:
        return self.label == "baseline"

    @property
    def is_lost(self) -> bool:
        """Whether it failed through no fault of its candidate: it teaches nothing and is held against nothing."""
        return self.failure is not None and not self.failure.blames_candidate

    @property
    def counts_for(self) -> Candidate:
        """The candidate that the measurement belongs to: the engine may have corrected a value."""
        return self.counted or self.candidate

    @property
    def cost(self) -> float | None:
        """The objective where the trial has one, whether or not it is feasible."""
        return None if self.verdict is None else self.verdict.objective


class Attempt(Value):
    """One launch of a trial. Times are UTC.

    `ended` is `measured`, `failed`, `cancelled` or `lost`; None while it runs. `host` where it is known.
    """

    attempt: int
    uid: str
    started_at: datetime
    ended_at: datetime | None = None
    ended: str | None = None
    host: str | None = None
    failure: Failure | None = None


def attempt_of(
    trial: Trial,
    number: int,
    uid: str,
    times: tuple[datetime, datetime | None],
    ended: str | None,
    lost: Failure | None,
) -> Attempt:
    """The attempt of that number: what ended its trial is told by the trial."""
    last = trial.attempt == number and trial.state in (TrialState.MEASURED, TrialState.FAILED)
    failure = trial.failure if last else lost
    host = trial.provenance.host if last and trial.provenance else failure.host if failure else None
    began, end = times
    return Attempt(attempt=number, uid=uid, started_at=began, ended_at=end, ended=ended, host=host, failure=failure)
