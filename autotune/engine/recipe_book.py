"""Writes the recipe of a finished study."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from autotune.domain.job import Provenance
from autotune.domain.recipe import Evidence, Recipe
from autotune.domain.space import SearchSpace
from autotune.domain.study import Study, StudyState
from autotune.domain.trial import StudyPhase, Trial
from autotune.engine.confirmation import CONFIDENCE, conclude
from autotune.errors import NothingToExport


def build_recipe(study: Study, space: SearchSpace, trials: Sequence[Trial], now: datetime) -> Recipe:
    """Raises NothingToExport for a study that is not done, with what to do about it."""
    if study.state is not StudyState.DONE:
        raise NothingToExport(
            f"study {study.id} is {study.state} in phase {study.phase}; a recipe exists when it is done"
        )
    result = conclude(study.spec, trials)
    best = result.winner.evidence if result.winner else result.baseline
    base_run = _provenance(result.baseline, trials)
    best_run = _provenance(best, trials)
    return Recipe(
        study_id=study.id,
        study_name=study.spec.name,
        space=space.name,
        engine=space.engine,
        chip=space.chip,
        confirmed=result.winner is not None,
        finding=study.finding or result.finding,
        confidence=CONFIDENCE,
        workload=study.spec.workload,
        objective=study.spec.objective,
        sla=study.spec.sla,
        baseline=result.baseline,
        best=best,
        contenders=result.contenders,
        changes=result.baseline.candidate.difference(best.candidate),
        roles=best_run.roles,
        baseline_roles=base_run.roles,
        simulated=best_run.simulated,
        version=best_run.version,
        seed=study.spec.seed,
        created_at=now,
    )


def _provenance(evidence: Evidence, trials: Sequence[Trial]) -> Provenance:
    """How the configuration was really launched: the last launch of it that was measured."""
    numbers = set(evidence.trials)
    runs = [t for t in trials if t.number in numbers and t.provenance is not None and t.measurement is not None]
    if not runs:
        # A baseline whose confirmation launches all failed: the gate's launches ran the same configuration.
        runs = [t for t in trials if t.phase is StudyPhase.GATE and t.provenance and t.measurement]
    if not runs or runs[-1].provenance is None:
        raise NothingToExport("no launch of the baseline was measured")
    return runs[-1].provenance
