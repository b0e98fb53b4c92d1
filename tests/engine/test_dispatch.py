"""Whole studies on a scripted executor: course, crashes, restarts at every point, cancellation, lease."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.effective import Corrected, EffectiveConfig
from autotune.domain.failure import FailureClass, RetryPolicy
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.retry import BACK_OFF_S
from autotune.domain.study import Study, StudyState
from autotune.domain.trial import MAX_ATTEMPTS, StudyPhase, TrialState
from autotune.engine.dispatch import Dispatcher
from autotune.engine.recipe_book import build_recipe
from autotune.engine.study_plan import finalists
from autotune.errors import NothingToExport
from autotune.proposers.tpe import TpeSource
from tests import builders
from tests.fakes import InMemoryStudyStore, ManualClock, ScriptedExecutor


def play(job: TrialJob) -> TrialOutcome:
    """Large buffers crash, AIV and long drafts help, a little noise by launch."""
    env = job.plan.roles["server"].env
    if int(env.get("HCCL_BUFFSIZE", "200")) > 1500:
        return builders.outcome(job, failure=builders.failure(log_tail="NPU out of memory"))
    tpot = 14.0 * (0.8 if env.get("HCCL_OP_EXPANSION_MODE") == "AIV" else 1.0)
    return builders.outcome(job, tpot_ms=tpot * (1 + 0.001 * (job.seed % 5)))


class World:
    """A store, an executor and a clock that outlive their dispatchers."""

    def __init__(self, slots: int = 2, **spec: Any) -> None:
        self.clock = ManualClock()
        self.store = InMemoryStudyStore(self.clock.now)
        self.executor = ScriptedExecutor(play, slots=slots, clock=self.clock)
        self.study = self.store.create_study(builders.study_spec(**spec), builders.space())
        self.said: list[str] = []

    def dispatcher(self, owner: str = "one") -> Dispatcher:
        return Dispatcher(self.store, self.executor, TpeSource(), self.clock, owner=owner, report=self.said.append)

    def run(self, dispatcher: Dispatcher, turns: int = 200) -> Study:
        for _ in range(turns):
            dispatcher.turn()
            if self.now.state.is_finished:
                break
        return self.now

    @property
    def now(self) -> Study:
        return self.store.study(self.study.id)

    @property
    def trials(self) -> list[Any]:
        return list(self.store.trials(self.study.id).items)


def test_a_study_runs_from_gate_to_a_confirmed_recipe() -> None:
    world = World()
    study = world.run(world.dispatcher())
    assert study.state is StudyState.DONE
    assert study.finding is not None
    assert study.finding.startswith("confirmed")
    phases = Counter(t.phase for t in world.trials)
    assert phases[StudyPhase.GATE] == 2
    assert phases[StudyPhase.RECIPES] == 1
    assert phases[StudyPhase.CONFIRM] == 4
    assert len(world.trials) == study.spec.budget.trials
    recipe = build_recipe(study, builders.space(), world.trials, world.clock.now())
    assert recipe.confirmed
    assert recipe.best.candidate.values["expansion_mode"] == "AIV"
    assert recipe.roles["server"].argv[0] == "serve"


def test_crashes_are_stored_and_the_search_goes_on() -> None:
    world = World()
    world.run(world.dispatcher())
    failed = [t for t in world.trials if t.state is TrialState.FAILED]
    assert failed
    assert all(t.failure.log_tail == "NPU out of memory" and t.measurement is None for t in failed)
    assert all(t.verdict is None for t in failed)


def test_every_outcome_is_acknowledged_once_stored() -> None:
    world = World()
    world.run(world.dispatcher())
    assert sorted(world.executor.acknowledged) == sorted(j.uid for j in world.executor.submitted)
    assert world.executor.repeated == []


@given(deaths=st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=25, deadline=None)
def test_a_dispatcher_may_die_between_any_two_turns(deaths: list[int]) -> None:
    world = World()
    dispatcher = world.dispatcher()
    for turn in range(300):
        if turn in deaths:
            dispatcher = world.dispatcher(f"again-{turn}")
        dispatcher.turn()
        if world.now.state.is_finished:
            break
    assert world.now.state is StudyState.DONE
    finished = Counter(e.trial_number for e in world.store.events(0, 10_000) if e.kind == "trial_finished")
    assert finished == Counter({t.number: 1 for t in world.trials})
    assert len({j.uid for j in world.executor.submitted}) == len(world.executor.submitted)
    assert all(t.attempt == 1 for t in world.trials)


class DiesAt(Exception):
    """The process ends here."""


def test_death_between_commit_and_submit_launches_the_trial_later_and_once() -> None:
    world = World(slots=1)
    dispatcher = world.dispatcher()
    submit = world.executor.submit

    def die(job: TrialJob) -> None:
        raise DiesAt

    world.executor.submit = die  # type: ignore[method-assign]
    with pytest.raises(DiesAt):
        dispatcher.turn()
    world.executor.submit = submit  # type: ignore[method-assign]
    assert world.trials[0].state is TrialState.RUNNING
    assert world.run(world.dispatcher("two")).state is StudyState.DONE
    assert world.trials[0].attempt == 2
    assert [j.uid for j in world.executor.submitted].count(f"{world.study.uid}-0-2") == 1


def test_what_the_infrastructure_lost_is_tried_again_and_not_held_against_the_candidate() -> None:
    world = World()
    lost: set[int] = set()

    def flaky(job: TrialJob) -> TrialOutcome:
        if job.trial_number not in lost:
            lost.add(job.trial_number)
            return builders.outcome(job, failure=builders.failure(failure_class=FailureClass.INFRASTRUCTURE))
        return play(job)

    world.executor = ScriptedExecutor(flaky, slots=2, clock=world.clock)
    assert world.run(world.dispatcher(), turns=2000).state is StudyState.DONE
    assert {t.attempt for t in world.trials} == {2}
    assert all(t.failure is None or t.failure.failure_class.blames_candidate for t in world.trials)


def test_a_fault_that_follows_a_trial_ends_it_after_three_attempts() -> None:
    world = World()

    def broken(job: TrialJob) -> TrialOutcome:
        if job.trial_number == 3:
            return builders.outcome(job, failure=builders.failure(failure_class=FailureClass.INFRASTRUCTURE))
        return play(job)

    world.executor = ScriptedExecutor(broken, slots=2, clock=world.clock)
    assert world.run(world.dispatcher()).state is StudyState.DONE
    assert world.trials[3].state is TrialState.FAILED
    assert world.trials[3].attempt == MAX_ATTEMPTS


def lost(job: TrialJob, host: str = "host-b", **changes: Any) -> TrialOutcome:
    """An attempt that a host lost."""
    failure = builders.failure(failure_class=FailureClass.INFRASTRUCTURE, **changes)
    return builders.outcome(job, failure=failure, provenance=builders.provenance(host=host))


def test_another_attempt_keeps_off_the_hosts_that_lost_the_trial() -> None:
    world = World()

    def on_two_hosts(job: TrialJob) -> TrialOutcome:
        return lost(job, f"host-{job.attempt}") if job.trial_number == 1 and job.attempt < 3 else play(job)

    world.executor = ScriptedExecutor(on_two_hosts, slots=2, clock=world.clock)
    assert world.run(world.dispatcher()).state is StudyState.DONE
    jobs = [job for job in world.executor.submitted if job.trial_number == 1]
    assert [job.avoid_hosts for job in jobs] == [(), ("host-1",), ("host-1", "host-2")]
    assert all(job.avoid_hosts == () for job in world.executor.submitted if job not in jobs)
    kept = world.store.attempts(world.study.id, 1)
    assert [(a.ended, a.host) for a in kept] == [("lost", "host-1"), ("lost", "host-2"), ("measured", "host-a")]


def without_engine(job: TrialJob) -> TrialOutcome:
    return lost(job, retry=RetryPolicy.REPAIR)


def test_what_a_host_lacks_is_looked_for_on_another_one_only() -> None:
    for hosts, attempts in ((("host-b",), 1), (("host-b", "host-c"), MAX_ATTEMPTS)):
        world = World()
        world.executor = ScriptedExecutor(without_engine, clock=world.clock)
        world.executor.host_names = hosts
        study = world.run(world.dispatcher())
        assert study.state is StudyState.FAILED
        assert study.finding is not None
        assert study.finding.startswith("the hosts are unusable: 2 trials in a row were lost in")
        assert "mend the host" in study.finding
        assert {t.attempt for t in world.trials} == {attempts}


def test_collectives_that_were_not_set_up_are_tried_again_and_never_told() -> None:
    world = World()
    failure = builders.failure(FailureClass.COMMUNICATION, retry=RetryPolicy.ELSEWHERE)

    def slow_fabric(job: TrialJob) -> TrialOutcome:
        if job.trial_number == 3 or (job.trial_number == 4 and job.attempt == 1):
            return builders.outcome(job, failure=failure)
        return play(job)

    world.executor = ScriptedExecutor(slow_fabric, slots=2, clock=world.clock)
    world.run(world.dispatcher())
    assert (world.trials[3].state, world.trials[3].attempt) == (TrialState.FAILED, MAX_ATTEMPTS)
    assert world.trials[3].is_lost
    assert (world.trials[4].attempt, world.trials[4].failure is None) == (2, True)


def test_the_same_host_is_left_alone_for_a_moment_before_it_is_tried_again() -> None:
    world = World(slots=1)
    first = f"{world.study.uid}-0-1"
    world.executor = ScriptedExecutor(lambda job: lost(job) if job.uid == first else play(job), clock=world.clock)
    world.executor.host_names = ("host-b",)
    assert world.run(world.dispatcher()).state is StudyState.DONE
    one, two = world.store.attempts(world.study.id, 0)
    assert one.ended_at is not None
    assert (two.started_at - one.ended_at).total_seconds() >= BACK_OFF_S
    later = [t for t in world.trials if t.number > 0]
    assert all(t.started_at >= two.started_at for t in later)


def test_stopping_the_service_costs_a_trial_none_of_its_attempts() -> None:
    world = World(slots=1)
    world.executor = ScriptedExecutor(lambda job: None, clock=world.clock)
    for n in range(MAX_ATTEMPTS):
        dispatcher = world.dispatcher(f"stopped-{n}")
        dispatcher.turn()
        dispatcher.stop()
    assert world.trials[0].attempt == MAX_ATTEMPTS
    at_first = MAX_ATTEMPTS + 1
    world.executor = ScriptedExecutor(
        lambda job: lost(job) if job.trial_number == 0 and job.attempt == at_first else play(job), clock=world.clock
    )
    assert world.run(world.dispatcher("last")).state is StudyState.DONE
    assert (world.trials[0].state, world.trials[0].attempt) == (TrialState.MEASURED, at_first + 1)


def test_a_trial_that_leaves_no_trace_each_time_is_given_up() -> None:
    world = World(slots=1)
    world.executor = ScriptedExecutor(lambda job: None, clock=world.clock)
    for n in range(MAX_ATTEMPTS):
        world.dispatcher(f"dies-{n}").turn()
        for uid in world.executor.in_flight():
            world.executor.forget(uid)
    world.dispatcher("last")
    world.executor = ScriptedExecutor(play, clock=world.clock)
    assert world.run(world.dispatcher("last")).state is StudyState.DONE
    first = world.trials[0]
    assert (first.state, first.attempt, first.is_lost) == (TrialState.FAILED, MAX_ATTEMPTS, True)
    assert [a.ended for a in world.store.attempts(world.study.id, 0)] == ["lost", "lost", "failed"]


def test_hosts_that_lose_everything_end_the_study_and_a_resumed_one_goes_on() -> None:
    world = World()
    world.executor = ScriptedExecutor(
        lambda job: play(job) if job.trial_number < 4 else lost(job), slots=2, clock=world.clock
    )
    dispatcher = world.dispatcher()
    study = world.run(dispatcher)
    assert study.state is StudyState.FAILED
    assert study.finding is not None
    assert "hosts are unusable" in study.finding
    assert "(on host-b)" in study.finding
    assert len(world.trials) < study.spec.budget.trials / 2
    dispatcher.turn()
    world.store.resume_study(study.id)
    world.executor = ScriptedExecutor(play, slots=2, clock=world.clock)
    world.clock.advance(1)
    assert world.run(world.dispatcher("two")).state is StudyState.DONE


def test_only_the_search_loses_patience_by_what_the_study_learned() -> None:
    world = World()
    world.run(world.dispatcher())
    by_phase = {t.number: t.phase for t in world.trials}
    limited = {by_phase[job.trial_number] for job in world.executor.submitted if job.limits is not None}
    assert limited == {StudyPhase.SEARCH}


def test_a_baseline_that_cannot_run_ends_the_study_with_its_finding() -> None:
    world = World()
    world.executor = ScriptedExecutor(lambda job: builders.outcome(job, failure=builders.failure()), clock=world.clock)
    study = world.run(world.dispatcher())
    assert study.state is StudyState.FAILED
    assert study.finding is not None
    assert "out of memory" in study.finding
    with pytest.raises(NothingToExport, match="failed"):
        build_recipe(study, builders.space(), world.trials, world.clock.now())


def test_cancelling_ends_what_flies_and_nothing_starts_after_it() -> None:
    world = World()
    world.executor = ScriptedExecutor(lambda job: None, slots=2, clock=world.clock)
    dispatcher = world.dispatcher()
    dispatcher.turn()
    assert len(world.executor.submitted) == 1 or len(world.executor.submitted) == 2
    world.store.finish_study(world.study.id, StudyState.CANCELLED, "cancelled by the user")
    started = len(world.executor.submitted)
    dispatcher.turn()
    dispatcher.turn()
    assert len(world.executor.submitted) == started
    assert sorted(world.executor.cancelled) == sorted(j.uid for j in world.executor.submitted)
    assert {t.state for t in world.trials} == {TrialState.CANCELLED}


def test_a_cancelled_study_can_be_resumed_to_its_end() -> None:
    world = World()
    dispatcher = world.dispatcher()
    for _ in range(3):
        dispatcher.turn()
    world.store.finish_study(world.study.id, StudyState.CANCELLED, "cancelled by the user")
    dispatcher.turn()
    world.store.resume_study(world.study.id)
    assert world.run(dispatcher).state is StudyState.DONE


def test_stopping_the_service_keeps_the_trials_for_later() -> None:
    world = World()
    world.executor = ScriptedExecutor(lambda job: None, slots=2, clock=world.clock)
    dispatcher = world.dispatcher()
    dispatcher.turn()
    dispatcher.stop()
    assert {t.state for t in world.trials} == {TrialState.WAITING}
    assert world.executor.closed
    world.executor = ScriptedExecutor(play, slots=2, clock=world.clock)
    assert world.run(world.dispatcher("two")).state is StudyState.DONE


def test_only_the_holder_of_the_lease_turns() -> None:
    world = World()
    one, two = world.dispatcher("one"), world.dispatcher("two")
    assert one.hold()
    assert not two.hold()
    one.release()
    assert two.hold()
    world.clock.advance(60)
    assert one.hold()


def test_an_executor_that_takes_nothing_is_waited_for() -> None:
    world = World()
    world.executor.available = False
    dispatcher = world.dispatcher()
    for _ in range(5):
        dispatcher.turn()
    assert {t.state for t in world.trials} == {TrialState.WAITING}
    world.executor.available = True
    assert world.run(dispatcher).state is StudyState.DONE


def test_several_studies_share_the_slots() -> None:
    world = World(slots=3)
    other = world.store.create_study(builders.study_spec(name="other"), builders.space())
    dispatcher = world.dispatcher()
    for _ in range(400):
        dispatcher.turn()
    assert world.now.state is StudyState.DONE
    assert world.store.study(other.id).state is StudyState.DONE


def test_a_value_that_the_engine_corrected_counts_for_the_corrected_candidate() -> None:
    """Every launch with AIV runs without it: the trials count for what ran, and AIV can't win."""
    world = World()

    def corrected(job: TrialJob) -> TrialOutcome:
        env = job.plan.roles["server"].env
        if env.get("HCCL_OP_EXPANSION_MODE") != "AIV":
            return play(job)
        change = Corrected(setting="env HCCL_OP_EXPANSION_MODE", asked="AIV", got=None, line="AIV is off")
        return builders.outcome(job, tpot_ms=5.0, effective={"server": EffectiveConfig(corrected=(change,))})

    world.executor = ScriptedExecutor(corrected, slots=2, clock=world.clock)
    assert world.run(world.dispatcher()).state is StudyState.DONE
    asked = [t for t in world.trials if t.candidate.values.get("expansion_mode") == "AIV"]
    assert asked
    assert all("expansion_mode" not in t.counts_for.values for t in asked)
    assert all(t.counts_for == t.candidate for t in world.trials if t not in asked)
    assert all("expansion_mode" not in c.values for c in finalists(world.now.spec, world.trials))
