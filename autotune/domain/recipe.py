"""A recipe: what a study recommends, with its evidence."""

from __future__ import annotations

from datetime import datetime

from autotune.domain.candidate import Candidate
from autotune.domain.job import LaunchedRole
from autotune.domain.knobs import KnobValue
from autotune.domain.objective import Limit, Objective
from autotune.domain.value import Value
from autotune.domain.workload import Workload


class Interval(Value):
    """A mean of n launches with its confidence interval."""

    mean: float
    low: float
    high: float
    n: int


class Evidence(Value):
    """One configuration over its confirmation launches. `tpot_ms` and `ttft_ms` by load level."""

    label: str
    candidate: Candidate
    trials: tuple[int, ...]
    failed_trials: tuple[int, ...] = ()
    infeasible_trials: tuple[int, ...] = ()
    objective: Interval | None = None
    tpot_ms: dict[str, Interval] = {}
    ttft_ms: dict[str, Interval] = {}
    output_tok_s: dict[str, Interval] = {}

    @property
    def launches(self) -> int:
        return len(self.trials)


class Comparison(Value):
    """A finalist against the baseline. Gains in percent of the baseline, positive is better."""

    evidence: Evidence
    gain_pct: Interval | None
    gain_pct_by_level: dict[str, Interval]
    proven: bool
    reason: str


class Recipe(Value):
    """The answer of a study.

    `confirmed`: fresh launches, interleaved with the baseline, prove the gain of `best`. Where nothing is
    proven, `best` is the baseline itself, and `contenders` show what came nearest.
    """

    study_id: int
    study_name: str
    space: str
    engine: str
    chip: str
    confirmed: bool
    finding: str
    confidence: float
    workload: Workload
    objective: Objective
    sla: tuple[Limit, ...]
    baseline: Evidence
    best: Evidence
    contenders: tuple[Comparison, ...]
    changes: dict[str, tuple[KnobValue, KnobValue]]
    roles: dict[str, LaunchedRole]
    baseline_roles: dict[str, LaunchedRole]
    simulated: bool
    version: str
    seed: int
    created_at: datetime
