"""What is hopeless beside the best trial of a study, which trials are told, and what the search makes of it."""

from __future__ import annotations

import pytest

from autotune.domain.early_abort import LEAST_OBJECTIVE, MARGIN, OTHERS_AT_BEST
from autotune.domain.failure import FailureClass, FailureValue
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.objective import Objective, ObjectiveMetric
from autotune.domain.retry import policy
from autotune.domain.study import StudyState
from autotune.domain.trial import StudyPhase, TrialState
from autotune.engine.incumbent import hopeless_above
from tests import builders
from tests.engine.history import History
from tests.engine.test_dispatch import World, play
from tests.fakes import ScriptedExecutor

WORKLOAD = builders.workload()
LEVELS = [level.name for level in WORKLOAD.levels]


def test_the_best_feasible_trial_is_the_measure() -> None:
    history = History()
    history.add(StudyPhase.GATE, tpot_ms=14.0)
    best = history.add(StudyPhase.SEARCH, tpot_ms=10.0)
    found = hopeless_above(Objective(), WORKLOAD, history.trials)
    assert found is not None
    assert found.trial == best.number
    assert found.objective_ms == pytest.approx(MARGIN * 10.0)
    assert set(found.limits_ms) == set(LEVELS)
    share = 1 / len(LEVELS)
    for limit in found.limits_ms.values():
        ratio = limit / 10.0
        others = OTHERS_AT_BEST ** (1 - share)
        assert ratio**share * others == pytest.approx(MARGIN)


def test_one_level_that_counts_is_held_to_the_margin_alone() -> None:
    history = History()
    history.add(StudyPhase.GATE, tpot_ms=10.0)
    weights = dict.fromkeys(LEVELS[1:], 0.0)
    found = hopeless_above(Objective(weights=weights), WORKLOAD, history.trials)
    assert found is not None
    assert found.limits_ms == {LEVELS[0]: pytest.approx(MARGIN * 10.0)}


def test_throughput_and_a_study_without_a_good_trial_have_no_limit() -> None:
    history = History()
    history.add(StudyPhase.GATE, failure=builders.failure())
    assert hopeless_above(Objective(), WORKLOAD, history.trials) is None
    history.add(StudyPhase.GATE, tpot_ms=10.0)
    assert hopeless_above(Objective(metric=ObjectiveMetric.THROUGHPUT), WORKLOAD, history.trials) is None


def cut(job: TrialJob) -> TrialOutcome:
    """Whatever carries a limit and has a large buffer is cut."""
    if job.hopeless_above is None or int(job.plan.roles["server"].env.get("HCCL_BUFFSIZE", "200")) < 300:
        return play(job)
    value = FailureValue(name=LEAST_OBJECTIVE, value=job.hopeless_above.objective_ms, unit="ms")
    return builders.outcome(job, failure=builders.failure(FailureClass.HOPELESS, values=(value,)))


@pytest.mark.parametrize("asked", [True, False])
def test_only_the_search_of_a_study_that_asks_for_it_is_cut(asked: bool) -> None:
    world = World(early_abort=asked)
    world.executor = ScriptedExecutor(cut, slots=2, clock=world.clock)
    assert world.run(world.dispatcher()).state is StudyState.DONE
    phases = {t.number: t.phase for t in world.trials}
    told = {phases[job.trial_number] for job in world.executor.submitted if job.hopeless_above is not None}
    assert told == ({StudyPhase.SEARCH} if asked else set())
    for trial in world.trials:
        if trial.failure is not None and trial.failure.failure_class is FailureClass.HOPELESS:
            found = policy(trial)
            assert found is not None
            assert "at least" in found.sentence
            assert trial.state is TrialState.FAILED
