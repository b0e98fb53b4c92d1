"""The best trial of a study so far, as the measure of what is hopeless beside it."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.domain.early_abort import MARGIN, OTHERS_AT_BEST, HopelessAbove
from autotune.domain.objective import Objective, ObjectiveMetric
from autotune.domain.trial import Trial
from autotune.domain.workload import Workload


def hopeless_above(objective: Objective, workload: Workload, trials: Iterable[Trial]) -> HopelessAbove | None:
    """The limits by the best feasible trial so far; None where there is none, or where throughput is the objective."""
    if objective.metric is not ObjectiveMetric.TPOT:
        return None
    able = [t for t in trials if t.cost is not None and t.verdict is not None and t.verdict.feasible]
    best = min(able, key=lambda t: (t.cost, t.number), default=None)
    if best is None or best.measurement is None or best.cost is None:
        return None
    mass = sum(objective.weights.get(level.name, 1.0) for level in workload.levels)
    limits: dict[str, float] = {}
    for level in workload.levels:
        share = objective.weights.get(level.name, 1.0) / mass
        measured = best.measurement.levels.get(level.name)
        # Under a schedule of arrivals, answers that end early tell little of those that queue later.
        if share == 0 or level.rate_per_s is not None or measured is None or measured.tpot_ms is None:
            continue
        factor = (MARGIN / OTHERS_AT_BEST ** (1 - share)) ** (1 / share)
        limits[level.name] = factor * measured.tpot_ms.mean
    if not limits:
        return None
    return HopelessAbove(limits_ms=limits, objective_ms=MARGIN * best.cost, trial=best.number)
