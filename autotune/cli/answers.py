"""What the server answers, as far as this program reads it. Keys it does not know are passed over."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from autotune.domain.failure import LogContext
from autotune.domain.knobs import KnobValue
from autotune.domain.learned_bounds import LearnedBound
from autotune.domain.study import Study
from autotune.domain.trial import Trial

Changes = dict[str, tuple[KnobValue, KnobValue]]
"""Knob to (the baseline's value, this trial's); None stands for unset."""


class Answer(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class BestSoFar(Answer):
    """The best feasible trial by its own measurement."""

    number: int
    objective: float
    gain_pct: float | None = None


class Overview(Answer):
    """A study and how far it is; `counts` by trial state."""

    study: Study
    counts: dict[str, int]
    trials_total: int
    baseline_objective: float | None = None
    best: BestSoFar | None = None
    learned: tuple[LearnedBound, ...] = ()

    @property
    def finished_trials(self) -> int:
        return sum(self.counts.get(state, 0) for state in ("measured", "failed", "cancelled"))


class FailureLine(Answer):
    """A failure in short."""

    phase: str
    failure_class: str
    summary: str


class VerdictLine(Answer):
    """A verdict in short."""

    feasible: bool
    objective: float | None
    comparable: bool = True
    reasons: tuple[str, ...] = ()


class TrialLine(Answer):
    """A trial in a list; times in ms by load level."""

    number: int
    state: str
    phase: str
    label: str
    changes: Changes = {}
    verdict: VerdictLine | None = None
    failure: FailureLine | None = None
    tpot_ms: dict[str, float | None] = {}


class AttemptLine(Answer):
    """One launch of a trial."""

    attempt: int
    started_at: datetime
    ended: str | None = None
    host: str | None = None
    phase: str | None = None
    failure_class: str | None = None
    summary: str | None = None
    decisive_line: str | None = None


class PolicyLine(Answer):
    """What the study does about a failure."""

    consequence: str
    sentence: str


class InvolvedSetting(Answer):
    """A setting that may be to blame; `asked` is its value at this launch."""

    name: str
    asked: str | None = None


class FailureAbout(Answer):
    """What is known of such a failure."""

    means: str
    cause: str
    settings: tuple[InvolvedSetting, ...] = ()


class TrialDetail(Trial):
    """The whole trial."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    changes: Changes = {}
    attempts: tuple[AttemptLine, ...] = ()
    context: LogContext | None = None
    about: FailureAbout | None = None
    policy: PolicyLine | None = None


class SpaceLine(Answer):
    """A search space in a list."""

    name: str
    engine: str
    chip: str = ""
    about: str = ""
    knobs: int | None = None
    recipes: int | None = None
