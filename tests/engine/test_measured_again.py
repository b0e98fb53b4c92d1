"""Studies in which some measurements can't be trusted: made once more, then stored and never compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.measurement import Trust
from autotune.domain.retry import NOT_TRUSTED, Consequence, hosts_to_avoid, measured_again, policy_of_attempt
from autotune.domain.study import StudyState
from autotune.domain.trial import StudyPhase, TrialState
from autotune.engine.dispatch import Dispatcher
from autotune.proposers.tpe import TpeSource
from tests import builders
from tests.fakes import InMemoryStudyStore, ManualClock, ScriptedExecutor

REASON = "c1: streams waited 900.0 ms between requests"


def doubtful(job: TrialJob, tpot_ms: float = 1.0) -> TrialOutcome:
    """Far better than anything else, and not to be believed."""
    measurement = builders.measurement(tpot_ms, trust=Trust.INVALID, trust_reasons=(REASON,))
    return builders.outcome(job, measurement=measurement)


class World:
    def __init__(self, play: Callable[[TrialJob], TrialOutcome]) -> None:
        self.clock = ManualClock()
        self.store = InMemoryStudyStore(self.clock.now)
        self.executor = ScriptedExecutor(play, slots=2, clock=self.clock)
        self.study = self.store.create_study(builders.study_spec(gate_launches=3), builders.space())

    def run(self, deaths: tuple[int, ...] = ()) -> list[Any]:
        dispatcher = self._dispatcher()
        for turn in range(200):
            if turn in deaths:
                dispatcher = self._dispatcher()
            dispatcher.turn()
            if self.store.study(self.study.id).state.is_finished:
                break
        return list(self.store.trials(self.study.id).items)

    def _dispatcher(self) -> Dispatcher:
        return Dispatcher(self.store, self.executor, TpeSource(), self.clock, owner="one", report=lambda _: None)


@pytest.mark.parametrize("deaths", [(), (3,), (5, 9)])
def test_a_passing_disturbance_is_measured_away(deaths: tuple[int, ...]) -> None:
    world = World(lambda job: doubtful(job) if job.attempt == 1 and job.trial_number % 2 else builders.outcome(job))
    trials = world.run(deaths)
    assert world.store.study(world.study.id).state is StudyState.DONE
    assert {t.attempt for t in trials if t.number % 2} == {2}
    assert {t.attempt for t in trials if not t.number % 2} == {1}
    assert all(t.measurement.trust is Trust.OK for t in trials if t.measurement)
    first, second = world.store.attempts(world.study.id, 1)
    assert (first.ended, second.ended) == ("lost", "measured")
    assert first.failure is not None
    assert REASON in first.failure.summary


def test_what_stays_doubtful_is_stored_with_its_reasons_and_never_compared() -> None:
    world = World(lambda job: doubtful(job) if job.trial_number in (1, 4) else builders.outcome(job, tpot_ms=10.0))
    trials = world.run()
    assert world.store.study(world.study.id).state is StudyState.DONE
    for number in (1, 4):
        assert trials[number].state is TrialState.MEASURED
        assert trials[number].attempt == 2
        assert trials[number].measurement.trust_reasons == (REASON,)
        assert trials[number].cost is None
        assert trials[number].verdict.reasons == (f"not trusted: {REASON}",)
    finalists = [t for t in trials if t.phase is StudyPhase.CONFIRM and not t.is_baseline]
    assert all(t.candidate != trials[4].candidate for t in finalists)


def test_a_baseline_that_is_never_trusted_ends_the_study_with_the_reason() -> None:
    world = World(doubtful)
    trials = world.run()
    study = world.store.study(world.study.id)
    assert study.state is StudyState.FAILED
    assert study.finding == f"the baseline gives no usable measurement: {REASON}"
    assert [t.attempt for t in trials] == [2, 2, 2]


def test_only_invalid_measurements_and_only_once() -> None:
    doubt = measured_again(builders.measurement(trust=Trust.INVALID, trust_reasons=(REASON,)), [])
    assert doubt is not None
    assert doubt.signature == NOT_TRUSTED
    assert measured_again(builders.measurement(trust=Trust.INVALID), [doubt]) is None
    assert measured_again(builders.measurement(trust=Trust.WARN), []) is None
    assert not doubt.failure_class.blames_candidate
    assert hosts_to_avoid([doubt.model_copy(update={"host": "host-a"})]) == ()
    told = policy_of_attempt(doubt)
    assert told.consequence is Consequence.RETRIED
    assert "Measured once more" in told.sentence
