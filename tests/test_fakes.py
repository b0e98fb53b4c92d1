"""The scripted stand-ins behave as the ports promise; the store has the contract suite."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.study import Study
from autotune.domain.trial import StudyPhase, TrialState
from autotune.engine.ports import Clock, Proposer, ProposerSource, StudyStore, TrialExecutor
from autotune.errors import Unavailable
from tests.builders import job, new_trial, outcome, space, study_spec
from tests.fakes import InMemoryStudyStore, ManualClock, ScriptedExecutor, ScriptedProposer, ScriptedProposerSource


def measured(asked: TrialJob) -> TrialOutcome:
    return outcome(asked)


def in_flight(_asked: TrialJob) -> None:
    return None


def a_study() -> tuple[InMemoryStudyStore, Study]:
    store = InMemoryStudyStore()
    return store, store.create_study(study_spec(), space())


def test_they_are_what_the_engine_asks_for() -> None:
    ports: tuple[Clock, TrialExecutor, Proposer, ProposerSource, StudyStore] = (
        ManualClock(),
        ScriptedExecutor(measured),
        ScriptedProposer(),
        ScriptedProposerSource(),
        InMemoryStudyStore(),
    )
    assert all(ports)


def test_time_moves_only_when_it_is_told_to() -> None:
    clock = ManualClock()
    start = clock.now()
    assert clock.now() == start
    clock.sleep(1.5)
    clock.advance(1)
    assert clock.now() - start == timedelta(seconds=2.5)


def test_an_outcome_comes_again_until_it_is_acknowledged() -> None:
    executor = ScriptedExecutor(measured, slots=2)
    executor.submit(job("a"))
    assert executor.capacity() == 1
    assert executor.collect(0) == executor.collect(0) == [outcome("a")]
    executor.acknowledge("a")
    assert (executor.collect(0), executor.capacity(), executor.acknowledged) == ([], 2, ["a"])


def test_an_attempt_starts_once() -> None:
    executor = ScriptedExecutor(measured)
    executor.submit(job("a"))
    executor.submit(job("a"))
    executor.acknowledge("a")
    executor.submit(job("a"))
    assert [j.uid for j in executor.submitted] == ["a"]
    assert [j.uid for j in executor.repeated] == ["a", "a"]


def test_an_attempt_in_flight_is_adopted_and_arrives_later() -> None:
    clock = ManualClock()
    start = clock.now()
    executor = ScriptedExecutor(in_flight, clock=clock)
    executor.submit(job("a"))
    assert executor.adopt(job("a"))
    assert executor.collect(2) == []
    assert clock.now() - start == timedelta(seconds=2)
    executor.arrive(outcome("a", tpot_ms=7.0))
    assert executor.collect(2) == [outcome("a", tpot_ms=7.0)]
    assert not executor.adopt(job("b"))
    assert executor.adopted == ["a"]


def test_nothing_comes_of_what_was_cancelled_or_forgotten() -> None:
    executor = ScriptedExecutor(in_flight, slots=2)
    executor.submit(job("a"))
    executor.submit(job("b"))
    executor.cancel("a")
    executor.cancel("unknown")
    executor.forget("b")
    executor.arrive(outcome("a"))
    executor.arrive(outcome("b"))
    assert executor.collect(0) == []
    assert (executor.cancelled, executor.in_flight(), executor.capacity()) == (["a"], [], 2)
    assert not executor.adopt(job("b"))


def test_an_executor_that_is_away() -> None:
    executor = ScriptedExecutor(measured)
    executor.available = False
    with pytest.raises(Unavailable):
        executor.submit(job("a"))
    executor.available = True
    executor.submit(job("a"))
    executor.close()
    assert (len(executor.submitted), executor.closed) == (1, True)


def test_a_proposer_plays_its_script_and_goes_on_where_it_stopped() -> None:
    store, study = a_study()
    script = [{"max_num_seqs": n} for n in (8, 16, 32)]
    source = ScriptedProposerSource(script)
    assert source.proposer(study, space(), []).ask() == script[0]
    store.add_trial(study.id, new_trial(StudyPhase.GATE, label="baseline"))
    store.add_trial(study.id, new_trial())
    store.cancel_trial(study.id, 1)
    proposer = source.proposer(study, space(), store.trials(study.id).items)
    assert [t.number for t in proposer.pending_trials] == [0]
    assert [t.state for t in proposer.told] == [TrialState.CANCELLED]
    assert [proposer.ask() for _ in range(3)] == [script[1], script[2], None]
    assert source.made[-1] is proposer
