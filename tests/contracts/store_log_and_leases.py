"""What a StudyStore promises about its event log, its leases, and about threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from autotune.domain.study import StudyState
from autotune.domain.trial import StudyPhase
from autotune.engine.ports import StudyStore
from autotune.errors import Conflict, TrialAlreadyFinished
from tests.builders import failure, measurement, new_trial, outcome, space, study_spec, verdict
from tests.contracts.trial_steps import LOST, THREADS, kinds, study
from tests.fakes import ManualClock


class StoreLogAndLeases:
    def test_events_tell_the_whole_story(self, store: StudyStore, clock: ManualClock) -> None:
        assert (store.last_event(), list(store.events(0))) == (0, [])
        study_id = study(store)
        store.set_phase(study_id, StudyPhase.SEARCH)
        store.add_trial(study_id, new_trial(label="one"))
        store.start_attempt(study_id, 0, "u-1")
        store.lose_attempt(study_id, 0, 1, LOST)
        store.start_attempt(study_id, 0, "u-2")
        store.finish_trial(study_id, 0, 2, outcome("u-2"), verdict())
        store.add_trial(study_id, new_trial())
        store.start_attempt(study_id, 1, "u-3")
        store.finish_trial(study_id, 1, 1, outcome("u-3", failure=failure()), None)
        store.add_trial(study_id, new_trial())
        store.cancel_trial(study_id, 2)
        store.finish_study(study_id, StudyState.FAILED, "too slow")
        store.resume_study(study_id)

        events = list(store.events(0))
        assert kinds(events) == [
            "study_created",
            "study_phase",
            "trial_added",
            "trial_started",
            "attempt_lost",
            "trial_started",
            "trial_finished",
            "trial_added",
            "trial_started",
            "trial_finished",
            "trial_added",
            "trial_cancelled",
            "study_finished",
            "study_resumed",
        ]
        assert [e.seq for e in events] == list(range(1, 15))
        assert store.last_event() == 14
        assert {e.study_id for e in events} == {study_id}
        assert [e.trial_number for e in events] == [None, None, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, None, None]
        assert {e.at for e in events} == {clock.now()}
        data = [e.data for e in events]
        assert data[0] == {"name": "small-study", "state": "running", "phase": "gate"}
        assert data[1] == {"name": "small-study", "state": "running", "phase": "search"}
        assert data[2] == {"state": "waiting", "phase": "search", "label": "one", "attempt": 0}
        assert data[4] == {
            "state": "waiting",
            "phase": "search",
            "label": "one",
            "attempt": 1,
            "failure_class": "infrastructure",
            "summary": "the worker is gone",
        }
        assert data[6] == {
            "state": "measured",
            "phase": "search",
            "label": "one",
            "attempt": 2,
            "feasible": True,
            "objective": pytest.approx(10.0),
            "tpot_ms": {"c1": 10.0, "c4": 10.0, "c8": 10.0},
        }
        assert data[9]["failure_class"] == "out_of_memory"
        assert data[12] == {"name": "small-study", "state": "failed", "phase": "search", "finding": "too slow"}
        assert data[13] == {"name": "small-study", "state": "running", "phase": "search"}

    def test_events_are_read_in_slices(self, store: StudyStore) -> None:
        for _ in range(5):
            study(store)
        assert [e.seq for e in store.events(2)] == [3, 4, 5]
        assert [e.seq for e in store.events(1, limit=2)] == [2, 3]
        assert list(store.events(5)) == []
        assert list(store.events(2**70)) == []

    def test_a_reader_misses_no_event_while_threads_write(self, store: StudyStore) -> None:
        study_id = study(store)
        done = threading.Event()

        def follow() -> list[int]:
            seen: list[int] = []
            while True:
                last_round = done.is_set()
                events = store.events(seen[-1] if seen else 0, limit=7)
                seen += [e.seq for e in events]
                if last_round and not events:
                    return seen
                time.sleep(0.001)  # a reader that never rests keeps the writers from the interpreter's lock

        def write(worker: int) -> None:
            for i in range(10):
                trial = store.add_trial(study_id, new_trial())
                uid = f"w{worker}-{i}"
                store.start_attempt(study_id, trial.number, uid)
                store.finish_trial(study_id, trial.number, 1, outcome(uid), verdict())

        with ThreadPoolExecutor(THREADS + 1) as pool:
            reader = pool.submit(follow)
            for writer in [pool.submit(write, n) for n in range(THREADS)]:
                writer.result()
            done.set()
            seen = reader.result()
        assert seen == list(range(1, 1 + 1 + THREADS * 10 * 3))
        assert [t.number for t in store.trials(study_id).items] == list(range(THREADS * 10))

    def test_one_of_many_wins(self, store: StudyStore) -> None:
        study_id = study(store)
        store.add_trial(study_id, new_trial())

        def race(call: Callable[[int], Any]) -> list[type | None]:
            def one(n: int) -> type | None:
                try:
                    call(n)
                except Conflict as error:
                    return type(error)
                return None

            with ThreadPoolExecutor(THREADS) as pool:
                return list(pool.map(one, range(THREADS)))

        started = race(lambda n: store.start_attempt(study_id, 0, f"u-{n}"))
        assert started.count(None) == 1
        uid = f"u-{started.index(None)}"
        finished = race(lambda n: store.finish_trial(study_id, 0, 1, outcome(uid, tpot_ms=1.0 + n), verdict()))
        assert (finished.count(None), finished.count(TrialAlreadyFinished)) == (1, THREADS - 1)
        measured = store.trial(study_id, 0).measurement
        assert measured == measurement(tpot_ms=1.0 + finished.index(None))
        assert race(lambda n: store.create_study(study_spec(), space(), "key")) == [None] * THREADS
        assert store.studies().total == 2
        assert race(lambda n: store.finish_study(study_id, StudyState.DONE, f"{n}")).count(None) == 1

    def test_a_lease_has_one_holder_until_it_runs_out(self, store: StudyStore, clock: ManualClock) -> None:
        assert store.hold_lease("dispatcher", "a", 10)
        assert not store.hold_lease("dispatcher", "b", 10)
        clock.advance(9)
        assert store.hold_lease("dispatcher", "a", 10)  # renewed: runs out at 19
        clock.advance(9.9)
        assert not store.hold_lease("dispatcher", "b", 10)
        clock.advance(0.1)
        assert store.hold_lease("dispatcher", "b", 10)
        assert not store.hold_lease("dispatcher", "a", 10)

    def test_a_lease_that_nobody_took_over_can_be_renewed_late(self, store: StudyStore, clock: ManualClock) -> None:
        assert store.hold_lease("dispatcher", "a", 10)
        clock.advance(100)
        assert store.hold_lease("dispatcher", "a", 10)
        assert not store.hold_lease("dispatcher", "b", 10)

    def test_a_shorter_renewal_shortens_the_lease(self, store: StudyStore, clock: ManualClock) -> None:
        assert store.hold_lease("dispatcher", "a", 100)
        assert store.hold_lease("dispatcher", "a", 1)
        clock.advance(1)
        assert store.hold_lease("dispatcher", "b", 10)

    def test_leases_of_different_names_are_independent(self, store: StudyStore) -> None:
        assert store.hold_lease("one", "a", 10)
        assert store.hold_lease("two", "b", 10)

    def test_a_lease_can_be_given_back_by_its_owner_alone(self, store: StudyStore) -> None:
        store.release_lease("dispatcher", "a")
        assert store.hold_lease("dispatcher", "a", 10)
        store.release_lease("dispatcher", "b")
        assert not store.hold_lease("dispatcher", "b", 10)
        store.release_lease("dispatcher", "a")
        assert store.hold_lease("dispatcher", "b", 10)

    def test_who_holds_a_lease(self, store: StudyStore, clock: ManualClock) -> None:
        assert store.lease_owner("dispatcher") is None
        assert store.hold_lease("dispatcher", "a", 10)
        assert store.lease_owner("dispatcher") == "a"
        clock.advance(10)
        assert store.lease_owner("dispatcher") is None

    def test_one_of_many_gets_the_lease(self, store: StudyStore) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            won = list(pool.map(lambda n: store.hold_lease("dispatcher", f"owner-{n}", 10), range(THREADS)))
        assert won.count(True) == 1
