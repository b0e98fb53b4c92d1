"""What `autotune.engine.ports.StudyStore` promises, for every implementation.

A test class inherits `StoreContract` and provides the fixtures `store` and `clock`; the store tells time by
the clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from autotune.domain.failure import FailureClass
from autotune.domain.measurement import Trust
from autotune.domain.study import StudyState
from autotune.domain.trial import StudyPhase, Trial, TrialState
from autotune.engine.ports import Event, StudyStore, TrialFilter
from autotune.errors import Conflict, InvalidRequest, NotFound, TrialAlreadyFinished
from tests.builders import candidate, failure, measurement, new_trial, outcome, space, study_spec, verdict
from tests.fakes import ManualClock

LOST = failure(FailureClass.INFRASTRUCTURE, summary="the worker is gone")
FINAL = [StudyState.DONE, StudyState.FAILED, StudyState.CANCELLED]
THREADS = 4


def study(store: StudyStore) -> int:
    """A running study."""
    return store.create_study(study_spec(), space()).id


def trial_in(store: StudyStore, study_id: int, state: TrialState) -> Trial:
    """A new trial, brought to a state."""
    trial = store.add_trial(study_id, new_trial())
    if state is TrialState.WAITING:
        return trial
    if state is TrialState.CANCELLED:
        return store.cancel_trial(study_id, trial.number)
    uid = f"a-{study_id}-{trial.number}-1"
    running = store.start_attempt(study_id, trial.number, uid)
    if state is TrialState.RUNNING:
        return running
    if state is TrialState.FAILED:
        return store.finish_trial(study_id, trial.number, 1, outcome(uid, failure=failure()), None)
    return store.finish_trial(study_id, trial.number, 1, outcome(uid), verdict())


def kinds(events: Sequence[Event]) -> list[str]:
    return [event.kind for event in events]


class StoreContract:
    # --- studies ----------------------------------------------------------------------------

    def test_a_new_study_runs_in_its_first_phase(self, store: StudyStore, clock: ManualClock) -> None:
        made = store.create_study(study_spec(name="first"), space())
        assert (made.state, made.phase, made.spec) == (StudyState.RUNNING, StudyPhase.GATE, study_spec(name="first"))
        assert (made.created_at, made.finished_at, made.finding) == (clock.now(), None, None)
        assert made.created_at.utcoffset() == timedelta(0)

    def test_a_study_is_read_as_it_was_written(self, store: StudyStore) -> None:
        spec = study_spec(sla=("tpot_ms <= 12.5 at c8", "error_rate == 0"), hold={"max_num_seqs": 16})
        made = store.create_study(spec, space(about="ünïcode \x00 \N{PILE OF POO}"))
        assert store.study(made.id) == made
        assert store.space_of(made.id) == space(about="ünïcode \x00 \N{PILE OF POO}")

    def test_study_uids_differ_and_can_start_the_uid_of_an_attempt(self, store: StudyStore) -> None:
        uids = [store.create_study(study_spec(), space()).uid for _ in range(5)]
        assert len(set(uids)) == 5
        assert all(uid.isalnum() and uid == uid.lower() for uid in uids)

    def test_the_same_key_gives_the_same_study(self, store: StudyStore) -> None:
        first = store.create_study(study_spec(), space(), "key-1")
        store.finish_study(first.id, StudyState.CANCELLED, "enough")
        again = store.create_study(study_spec(), space(about="changed on disk"), "key-1")
        assert again == store.study(first.id)
        assert store.studies().total == 1
        assert kinds(store.events(0)) == ["study_created", "study_finished"]

    def test_the_same_key_for_another_study_is_a_conflict(self, store: StudyStore) -> None:
        store.create_study(study_spec(), space(), "key-1")
        with pytest.raises(Conflict):
            store.create_study(study_spec(seed=7), space(), "key-1")
        assert store.studies().total == 1

    def test_other_keys_and_no_key_make_new_studies(self, store: StudyStore) -> None:
        ids = [store.create_study(study_spec(), space(), key).id for key in ("a", "b", None, None)]
        assert len(set(ids)) == 4

    @pytest.mark.parametrize("key", ["", "k" * 201])
    def test_a_key_of_the_wrong_length_is_refused(self, store: StudyStore, key: str) -> None:
        with pytest.raises(InvalidRequest):
            store.create_study(study_spec(), space(), key)

    def test_studies_come_newest_first_in_pages(self, store: StudyStore) -> None:
        ids = [study(store) for _ in range(5)]
        assert [s.id for s in store.studies().items] == ids[::-1]
        page = store.studies(offset=1, limit=2)
        assert ([s.id for s in page.items], page.total) == ([ids[3], ids[2]], 5)
        assert store.studies(offset=5).items == ()

    def test_studies_by_state(self, store: StudyStore) -> None:
        first, second = study(store), study(store)
        store.finish_study(first, StudyState.DONE, "found")
        assert [s.id for s in store.studies(StudyState.DONE).items] == [first]
        assert [s.id for s in store.studies(StudyState.RUNNING).items] == [second]
        assert store.studies(StudyState.FAILED).total == 0

    def test_a_phase_is_set_once_however_often_it_is_asked(self, store: StudyStore) -> None:
        study_id = study(store)
        for _ in range(3):
            store.set_phase(study_id, StudyPhase.SEARCH)
        assert store.study(study_id).phase is StudyPhase.SEARCH
        assert kinds(store.events(0)) == ["study_created", "study_phase"]

    @pytest.mark.parametrize("state", FINAL)
    def test_a_study_ends_once(self, store: StudyStore, clock: ManualClock, state: StudyState) -> None:
        study_id = study(store)
        clock.advance(60)
        done = store.finish_study(study_id, state, "because")
        assert (done.state, done.finding, done.finished_at) == (state, "because", clock.now())
        assert store.study(study_id) == done
        for again in FINAL:
            with pytest.raises(Conflict):
                store.finish_study(study_id, again, "otherwise")
        with pytest.raises(Conflict):
            store.set_phase(study_id, done.phase)
        with pytest.raises(Conflict):
            store.add_trial(study_id, new_trial())
        assert store.study(study_id) == done
        assert kinds(store.events(0)) == ["study_created", "study_finished"]

    def test_a_study_cannot_end_as_running(self, store: StudyStore) -> None:
        with pytest.raises(InvalidRequest):
            store.finish_study(study(store), StudyState.RUNNING, "")

    def test_waiting_trials_are_cancelled_with_their_study(self, store: StudyStore) -> None:
        study_id, other = study(store), study(store)
        numbers = {state: trial_in(store, study_id, state).number for state in TrialState}
        bystander = trial_in(store, other, TrialState.WAITING)
        seen = store.last_event()
        store.finish_study(study_id, StudyState.CANCELLED, "enough")
        states = {state: store.trial(study_id, number).state for state, number in numbers.items()}
        assert states == {**{s: s for s in TrialState}, TrialState.WAITING: TrialState.CANCELLED}
        assert store.trial(other, bystander.number) == bystander
        assert kinds(store.events(seen)) == ["trial_cancelled", "study_finished"]

    def test_an_attempt_in_flight_may_still_end_after_its_study(self, store: StudyStore) -> None:
        study_id = study(store)
        running = trial_in(store, study_id, TrialState.RUNNING)
        lost = trial_in(store, study_id, TrialState.RUNNING)
        store.finish_study(study_id, StudyState.CANCELLED, "enough")
        done = store.finish_trial(study_id, running.number, 1, outcome(f"a-{study_id}-{running.number}-1"), verdict())
        assert done.state is TrialState.MEASURED
        assert store.lose_attempt(study_id, lost.number, 1, LOST).state is TrialState.WAITING
        with pytest.raises(Conflict):
            store.start_attempt(study_id, lost.number, "late")
        store.resume_study(study_id)
        assert store.start_attempt(study_id, lost.number, "late").attempt == 2

    @pytest.mark.parametrize("state", [StudyState.CANCELLED, StudyState.FAILED])
    def test_a_cancelled_or_failed_study_can_be_resumed(self, store: StudyStore, state: StudyState) -> None:
        study_id = study(store)
        store.set_phase(study_id, StudyPhase.SEARCH)
        store.finish_study(study_id, state, "enough")
        again = store.resume_study(study_id)
        assert (again.state, again.phase) == (StudyState.RUNNING, StudyPhase.SEARCH)
        assert (again.finding, again.finished_at) == (None, None)
        assert store.study(study_id) == again
        assert store.add_trial(study_id, new_trial()).number == 0
        assert store.finish_study(study_id, StudyState.DONE, "found").state is StudyState.DONE

    def test_a_running_or_done_study_cannot_be_resumed(self, store: StudyStore) -> None:
        study_id = study(store)
        with pytest.raises(Conflict):
            store.resume_study(study_id)
        store.finish_study(study_id, StudyState.DONE, "found")
        with pytest.raises(Conflict):
            store.resume_study(study_id)
        assert store.study(study_id).state is StudyState.DONE

    # --- what is not there --------------------------------------------------------------------

    @pytest.mark.parametrize("study_id", [0, -1, 99, 2**31, 2**70])
    def test_an_unknown_study_is_not_found(self, store: StudyStore, study_id: int) -> None:
        study(store)
        calls: list[Callable[[], Any]] = [
            lambda: store.study(study_id),
            lambda: store.space_of(study_id),
            lambda: store.set_phase(study_id, StudyPhase.SEARCH),
            lambda: store.finish_study(study_id, StudyState.DONE, ""),
            lambda: store.resume_study(study_id),
            lambda: store.add_trial(study_id, new_trial()),
            lambda: store.start_attempt(study_id, 0, "u"),
            lambda: store.finish_trial(study_id, 0, 1, outcome("u"), verdict()),
            lambda: store.lose_attempt(study_id, 0, 1, LOST),
            lambda: store.cancel_trial(study_id, 0),
            lambda: store.trial(study_id, 0),
            lambda: store.trials(study_id),
        ]
        for call in calls:
            with pytest.raises(NotFound):
                call()
        assert store.last_event() == 1

    @pytest.mark.parametrize("number", [-1, 1, 2**31, 2**70])
    def test_an_unknown_trial_is_not_found(self, store: StudyStore, number: int) -> None:
        study_id = study(store)
        store.add_trial(study_id, new_trial())
        calls: list[Callable[[], Any]] = [
            lambda: store.start_attempt(study_id, number, "u"),
            lambda: store.finish_trial(study_id, number, 1, outcome("u"), verdict()),
            lambda: store.lose_attempt(study_id, number, 1, LOST),
            lambda: store.cancel_trial(study_id, number),
            lambda: store.trial(study_id, number),
        ]
        for call in calls:
            with pytest.raises(NotFound):
                call()

    # --- trials -----------------------------------------------------------------------------

    def test_a_trial_waits_under_the_next_number_of_its_study(self, store: StudyStore, clock: ManualClock) -> None:
        first, second = study(store), study(store)
        numbers = [store.add_trial(s, new_trial()).number for s in (first, second, first, first, second)]
        assert numbers == [0, 0, 1, 2, 1]
        trial = store.trial(first, 2)
        assert (trial.state, trial.attempt, trial.created_at) == (TrialState.WAITING, 0, clock.now())
        assert (trial.started_at, trial.finished_at, trial.measurement, trial.failure) == (None, None, None, None)

    def test_a_trial_is_read_as_it_was_written(self, store: StudyStore) -> None:
        new = new_trial(
            StudyPhase.RECIPES,
            label="aiv",
            proposal={"a": True, "b": 1, "c": 1.0, "d": None, "e": (1, 2.5, "x"), "f": 1e-300, "g": "\x00é"},
            candidate=candidate(expansion_mode="AIV", ratio=1.0),
            repairs=("r",),
            warnings=("w: x",),
        )
        made = store.add_trial(study(store), new)
        read = store.trial(made.study_id, made.number)
        assert read == made
        assert {name: getattr(read, name) for name in type(new).model_fields} == dict(new)
        # 1 == 1.0 == True: equality alone would not see a changed type
        assert [type(v) for v in read.proposal.values()] == [type(v) for v in new.proposal.values()]
        assert read.candidate.fingerprint == new.candidate.fingerprint

    def test_the_way_of_a_measured_trial(self, store: StudyStore, clock: ManualClock) -> None:
        study_id = study(store)
        store.add_trial(study_id, new_trial())
        clock.advance(1)
        running = store.start_attempt(study_id, 0, "u-1")
        assert (running.state, running.attempt, running.started_at) == (TrialState.RUNNING, 1, clock.now())
        clock.advance(1)
        came = outcome("u-1", tpot_ms={"c1": 9.0, "c4": 10.0, "c8": 12.0}, log_tail="ready\n")
        judged = verdict(came.measurement)
        done = store.finish_trial(study_id, 0, 1, came, judged)
        assert (done.state, done.finished_at) == (TrialState.MEASURED, clock.now())
        assert (done.measurement, done.failure, done.verdict) == (came.measurement, None, judged)
        assert (done.provenance, done.durations_s, done.log_tail) == (came.provenance, came.durations_s, "ready\n")
        assert (done.started_at, done.created_at) == (running.started_at, running.created_at)
        assert store.trial(study_id, 0) == done

    def test_the_way_of_a_failed_trial(self, store: StudyStore) -> None:
        study_id = study(store)
        store.add_trial(study_id, new_trial())
        store.start_attempt(study_id, 0, "u-1")
        came = outcome("u-1", failure=failure(decisive_line="OOM", exit_code=-9, log_tail="…"), provenance=None)
        done = store.finish_trial(study_id, 0, 1, came, None)
        assert (done.state, done.failure, done.measurement, done.verdict) == (
            TrialState.FAILED,
            came.failure,
            None,
            None,
        )
        assert store.trial(study_id, 0) == done

    @pytest.mark.parametrize("state", list(TrialState))
    def test_only_a_waiting_trial_can_start(self, store: StudyStore, state: TrialState) -> None:
        before = trial_in(store, study(store), state)
        if state is TrialState.WAITING:
            assert store.start_attempt(before.study_id, before.number, "u").state is TrialState.RUNNING
        else:
            self._refused(store, before, lambda: store.start_attempt(before.study_id, before.number, "u"))

    @pytest.mark.parametrize("state", list(TrialState))
    def test_only_a_running_trial_can_finish(self, store: StudyStore, state: TrialState) -> None:
        before = trial_in(store, study(store), state)
        came = outcome(f"a-{before.study_id}-{before.number}-1")
        if state is TrialState.RUNNING:
            done = store.finish_trial(before.study_id, before.number, 1, came, verdict())
            assert done.state is TrialState.MEASURED
        else:
            self._refused(store, before, lambda: store.finish_trial(before.study_id, before.number, 1, came, verdict()))

    @pytest.mark.parametrize("state", list(TrialState))
    def test_only_a_running_trial_can_lose_its_attempt(self, store: StudyStore, state: TrialState) -> None:
        before = trial_in(store, study(store), state)
        if state is TrialState.RUNNING:
            again = store.lose_attempt(before.study_id, before.number, 1, LOST)
            assert again == before.model_copy(update={"state": TrialState.WAITING, "started_at": None})
            assert store.trial(before.study_id, before.number) == again
        else:
            self._refused(store, before, lambda: store.lose_attempt(before.study_id, before.number, 1, LOST))

    @pytest.mark.parametrize("state", list(TrialState))
    def test_only_an_unfinished_trial_can_be_cancelled(
        self, store: StudyStore, clock: ManualClock, state: TrialState
    ) -> None:
        before = trial_in(store, study(store), state)
        clock.advance(5)
        if state.is_finished:
            self._refused(store, before, lambda: store.cancel_trial(before.study_id, before.number))
        else:
            after = store.cancel_trial(before.study_id, before.number)
            assert after == before.model_copy(update={"state": TrialState.CANCELLED, "finished_at": clock.now()})
            assert store.trial(before.study_id, before.number) == after

    def _refused(self, store: StudyStore, before: Trial, call: Callable[[], Any]) -> None:
        """The call raises the right error and leaves no trace."""
        seen = store.last_event()
        with pytest.raises(TrialAlreadyFinished if before.state.is_finished else Conflict):
            call()
        assert store.trial(before.study_id, before.number) == before
        assert store.last_event() == seen

    def test_a_second_result_changes_nothing(self, store: StudyStore) -> None:
        done = trial_in(store, study(store), TrialState.MEASURED)
        uid = f"a-{done.study_id}-{done.number}-1"
        for other in (outcome(uid), outcome(uid, tpot_ms=1.0), outcome(uid, failure=failure())):
            self._refused(
                store, done, lambda other=other: store.finish_trial(done.study_id, done.number, 1, other, None)
            )

    def test_only_the_current_attempt_can_finish_or_be_lost(self, store: StudyStore) -> None:
        study_id = study(store)
        store.add_trial(study_id, new_trial())
        store.start_attempt(study_id, 0, "u-1")
        store.lose_attempt(study_id, 0, 1, LOST)
        second = store.start_attempt(study_id, 0, "u-2")
        assert second.attempt == 2
        for attempt, uid in ((1, "u-1"), (3, "u-3"), (0, "u-0"), (2, "u-1")):
            self._refused(
                store, second, lambda a=attempt, u=uid: store.finish_trial(study_id, 0, a, outcome(u), verdict())
            )
        for attempt in (0, 1, 3):
            self._refused(store, second, lambda a=attempt: store.lose_attempt(study_id, 0, a, LOST))
        assert store.finish_trial(study_id, 0, 2, outcome("u-2"), verdict()).state is TrialState.MEASURED

    def test_the_uid_of_an_attempt_is_used_once(self, store: StudyStore) -> None:
        first, second = study(store), study(store)
        for study_id in (first, second):
            store.add_trial(study_id, new_trial())
        store.start_attempt(first, 0, "u-1")
        store.lose_attempt(first, 0, 1, LOST)
        for study_id in (first, second):
            before = store.trial(study_id, 0)
            self._refused(store, before, lambda s=study_id: store.start_attempt(s, 0, "u-1"))

    # --- lists --------------------------------------------------------------------------------

    def test_trials_come_by_number_in_pages(self, store: StudyStore) -> None:
        study_id, other = study(store), study(store)
        made = [store.add_trial(study_id, new_trial()) for _ in range(5)]
        store.add_trial(other, new_trial())
        assert store.trials(study_id).items == tuple(made)
        page = store.trials(study_id, offset=1, limit=2)
        assert (page.items, page.total) == (tuple(made[1:3]), 5)
        assert store.trials(study_id, offset=4).items == (made[4],)
        assert store.trials(study_id, offset=9, limit=3).items == ()
        assert store.trials(study_id, limit=0).total == 5
        assert store.trials(study_id, offset=2**70, limit=2**70).items == ()

    def test_trials_of_an_empty_study(self, store: StudyStore) -> None:
        page = store.trials(study(store))
        assert (page.items, page.total) == ((), 0)

    def test_filters(self, store: StudyStore) -> None:
        study_id = study(store)
        invalid = measurement(trust=Trust.INVALID, trust_reasons=["cut off"])
        outcomes = [
            (StudyPhase.GATE, outcome("u-0"), verdict()),
            (StudyPhase.SEARCH, outcome("u-1"), verdict()),
            (StudyPhase.SEARCH, outcome("u-2", measurement=invalid), verdict(invalid)),
            (StudyPhase.SEARCH, outcome("u-3", failure=failure(FailureClass.HANG)), None),
            (StudyPhase.SEARCH, outcome("u-4", failure=failure(FailureClass.CRASH)), None),
            (StudyPhase.CONFIRM, outcome("u-5", failure=failure(FailureClass.HANG)), None),
        ]
        for number, (phase, came, judged) in enumerate(outcomes):
            store.add_trial(study_id, new_trial(phase))
            store.start_attempt(study_id, number, came.uid)
            store.finish_trial(study_id, number, 1, came, judged)
        trial_in(store, study_id, TrialState.WAITING)

        def numbers(offset: int = 0, limit: int | None = None, **wanted: Any) -> tuple[list[int], int]:
            page = store.trials(study_id, TrialFilter(**wanted), offset, limit)
            return [t.number for t in page.items], page.total

        assert numbers(state=TrialState.MEASURED) == ([0, 1, 2], 3)
        assert numbers(state=TrialState.WAITING) == ([6], 1)
        assert numbers(state=TrialState.RUNNING) == ([], 0)
        assert numbers(phase=StudyPhase.SEARCH) == ([1, 2, 3, 4, 6], 5)
        assert numbers(failure_class="hang") == ([3, 5], 2)
        assert numbers(failure_class="no such class") == ([], 0)
        assert numbers(failure_class="") == ([], 0)
        assert numbers(feasible=True) == ([0, 1], 2)
        assert numbers(feasible=False) == ([2], 1)
        assert numbers(phase=StudyPhase.SEARCH, failure_class="hang") == ([3], 1)
        assert numbers(phase=StudyPhase.SEARCH, state=TrialState.FAILED, offset=1, limit=1) == ([4], 2)

    # --- events -------------------------------------------------------------------------------

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

    # --- leases -------------------------------------------------------------------------------

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

    def test_one_of_many_gets_the_lease(self, store: StudyStore) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            won = list(pool.map(lambda n: store.hold_lease("dispatcher", f"owner-{n}", 10), range(THREADS)))
        assert won.count(True) == 1
