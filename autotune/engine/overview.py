"""What a list of studies shows about each: counts, baseline, best so far."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from autotune.domain.study import Study
from autotune.domain.trial import StudyPhase, Trial, TrialState
from autotune.domain.value import Value


class BestSoFar(Value):
    """The best feasible trial by its own measurement: a hope, not a claim."""

    number: int
    label: str
    objective: float
    gain_pct: float | None


class StudyOverview(Value):
    """A study with its progress. `counts` maps a trial state to its number of trials."""

    study: Study
    counts: dict[str, int]
    trials_total: int
    baseline_objective: float | None
    best: BestSoFar | None


def baseline_objective(trials: Sequence[Trial]) -> float | None:
    """The median of the gate's launches of the baseline; None before the first."""
    values = [t.cost for t in trials if t.phase is StudyPhase.GATE and t.cost is not None]
    return statistics.median(values) if values else None


def overview(study: Study, trials: Sequence[Trial]) -> StudyOverview:
    """Computed from the stored trials alone."""
    objective = study.spec.objective
    base = baseline_objective(trials)
    feasible = [t for t in trials if t.state is TrialState.MEASURED and t.verdict is not None and t.verdict.feasible]
    ranked = sorted((objective.cost(t.cost), t.number, t) for t in feasible if t.cost is not None)
    best = None
    if ranked:
        trial = ranked[0][2]
        assert trial.cost is not None
        gain = None if base is None else objective.gain_pct(base, trial.cost)
        best = BestSoFar(number=trial.number, label=trial.label, objective=trial.cost, gain_pct=gain)
    return StudyOverview(
        study=study,
        counts=dict(Counter(str(t.state) for t in trials)),
        trials_total=len(trials),
        baseline_objective=base,
        best=best,
    )
