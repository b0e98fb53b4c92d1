"""What a list of studies shows about each: counts, baseline, best so far."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from autotune.domain.learned_bounds import LearnedBound
from autotune.domain.study import Study
from autotune.domain.trial import StudyPhase
from autotune.domain.value import Value
from autotune.engine.ports import TrialBrief


class BestSoFar(Value):
    """The best feasible trial by its own measurement: a hope, not a claim."""

    number: int
    label: str
    objective: float
    gain_pct: float | None


class StudyOverview(Value):
    """A study with its progress. `counts` maps a trial state to its number of trials.

    `learned` are the bounds that failed trials taught; empty in a list of studies.
    """

    study: Study
    counts: dict[str, int]
    trials_total: int
    baseline_objective: float | None
    best: BestSoFar | None
    learned: tuple[LearnedBound, ...] = ()


def overview(study: Study, trials: Sequence[TrialBrief]) -> StudyOverview:
    """Computed from the stored trials alone. The baseline counts by the median of the gate's launches."""
    objective = study.spec.objective
    gate = [t.objective for t in trials if t.phase is StudyPhase.GATE and t.objective is not None]
    base = statistics.median(gate) if gate else None
    ranked = [(objective.cost(t.objective), t) for t in trials if t.feasible and t.objective is not None]
    best = None
    if ranked:
        _, trial = min(ranked, key=lambda pair: (pair[0], pair[1].number))
        assert trial.objective is not None
        gain = None if base is None else objective.gain_pct(base, trial.objective)
        best = BestSoFar(number=trial.number, label=trial.label, objective=trial.objective, gain_pct=gain)
    return StudyOverview(
        study=study,
        counts=dict(Counter(str(t.state) for t in trials)),
        trials_total=len(trials),
        baseline_objective=base,
        best=best,
    )
