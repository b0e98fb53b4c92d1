"""A study: which candidate of a space serves a workload best under limits, within a budget."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field, StrictBool, StrictInt, model_validator

from autotune.domain.deployment import NAME, Deployment
from autotune.domain.knobs import KnobValue
from autotune.domain.objective import Limit, Objective
from autotune.domain.stack import StackVersions
from autotune.domain.trial import StudyPhase
from autotune.domain.value import Value
from autotune.domain.workload import Workload


class Budget(Value):
    """What a study may spend: launches in all phases together, and time in s."""

    trials: StrictInt = Field(ge=1, le=100_000)
    wall_time_s: float = Field(gt=0, le=30 * 86_400)


class Confirmation(Value):
    """How the claim is proved: the best `finalists`, each launched `rounds` times, interleaved with the baseline."""

    finalists: StrictInt = Field(default=3, ge=1, le=10)
    rounds: StrictInt = Field(default=3, ge=2, le=50)

    @property
    def launches(self) -> int:
        return (self.finalists + 1) * self.rounds


class StudySpec(Value):
    """What was asked, as written in a study file.

    `baseline` is laid over the space's own: what the user runs today. `hold` keeps knobs at a value in every
    candidate, so that they are not searched; `null` holds a knob unset. `stack` says what is installed where
    template and space do not. `recipes` are all of the space's, none, or those named. `include` names knobs that
    are not searched by default (or `tier3`, all of them). `early_abort` cuts the load of search trials that are
    far slower than the best one.
    """

    name: str = Field(pattern=NAME)
    space: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    deployment: Deployment
    workload: Workload
    objective: Objective = Objective()
    sla: tuple[Limit, ...] = Field(default=(), max_length=32)
    budget: Budget
    parallel_trials: StrictInt = Field(default=1, ge=1, le=64)
    seed: StrictInt = Field(default=0, ge=0, le=2**31 - 1)
    gate_launches: StrictInt = Field(default=3, ge=2, le=20)
    confirmation: Confirmation = Confirmation()
    recipes: bool | tuple[str, ...] = True
    stack: StackVersions = StackVersions()
    include: tuple[str, ...] = ()
    baseline: dict[str, KnobValue] = Field(default_factory=dict)
    hold: dict[str, KnobValue] = Field(default_factory=dict)
    early_abort: StrictBool = False

    @model_validator(mode="after")
    def _consistent(self) -> StudySpec:
        least = self.gate_launches + self.confirmation.launches + 1
        if self.budget.trials < least:
            raise ValueError(
                f"budget.trials: {self.budget.trials} is less than the {least} launches that the baseline "
                f"({self.gate_launches}), the confirmation ({self.confirmation.launches}) and one search trial "
                "need; raise it, or lower confirmation.rounds or confirmation.finalists"
            )
        length = self.workload.prompt_tokens + self.workload.output_tokens
        offered = self.deployment.max_model_len
        if offered is not None and offered < length:
            raise ValueError(
                f"deployment.max_model_len: {offered} tokens are fewer than the {length} of one request of the "
                "workload; raise it, or shorten the workload"
            )
        levels = {level.name for level in self.workload.levels}
        for name in self.objective.weights:
            if name not in levels:
                raise ValueError(f"objective.weights: unknown level {name}; allowed: {', '.join(sorted(levels))}")
        if not any(self.objective.weights.get(level, 1.0) for level in levels):
            raise ValueError("objective.weights: every level has weight 0; one must be above 0")
        for limit in self.sla:
            if limit.level is not None and limit.level not in levels:
                raise ValueError(f"sla: unknown level {limit.level}; allowed: {', '.join(sorted(levels))}")
        return self


class StudyState(StrEnum):
    """`done` has a result (a confirmed winner or "not proven"); `failed` has a finding instead."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_finished(self) -> bool:
        return self is not StudyState.RUNNING


class Study(Value):
    """A stored study; `finding` is the sentence that says how it ended."""

    id: int
    uid: str
    spec: StudySpec
    state: StudyState
    phase: StudyPhase
    finding: str | None = None
    created_at: datetime
    finished_at: datetime | None = None
