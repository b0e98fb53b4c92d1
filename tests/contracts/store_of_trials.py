"""What a StudyStore promises about trials and their lists."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from autotune.domain.failure import FailureClass
from autotune.domain.measurement import Trust
from autotune.domain.trial import StudyPhase, Trial, TrialState
from autotune.engine.ports import StudyStore, TrialFilter
from autotune.errors import Conflict, NotFound, TrialAlreadyFinished
from tests.builders import candidate, failure, measurement, new_trial, outcome, verdict
from tests.contracts.trial_steps import LOST, study, trial_in
from tests.fakes import ManualClock


class StoreOfTrials:
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

    def test_briefs_say_of_many_studies_what_a_list_shows(self, store: StudyStore) -> None:
        first, second, empty = study(store), study(store), study(store)
        for state in TrialState:
            trial_in(store, first, state)
        measured = trial_in(store, second, TrialState.MEASURED)
        briefs = store.briefs([first, second, empty, 999, 0, -1, 2**40])
        assert [b.state for b in briefs[first]] == list(TrialState)
        assert [b.number for b in briefs[first]] == list(range(len(TrialState)))
        assert measured.verdict is not None
        (brief,) = briefs[second]
        assert (brief.phase, brief.label) == (measured.phase, measured.label)
        assert (brief.objective, brief.feasible) == (measured.verdict.objective, measured.verdict.feasible)
        assert not briefs.get(empty)
        assert briefs.keys() <= {first, second, empty}

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

    def test_every_launch_of_a_trial_is_kept(self, store: StudyStore, clock: ManualClock) -> None:
        study_id = study(store)
        store.add_trial(study_id, new_trial())
        assert store.attempts(study_id, 0) == []
        lost = LOST.model_copy(update={"host": "host-b", "decisive_line": "the host is gone", "log_tail": "last words"})
        began = clock.now()
        store.start_attempt(study_id, 0, "u-1")
        clock.advance(3)
        store.lose_attempt(study_id, 0, 1, lost)
        store.start_attempt(study_id, 0, "u-2")
        first, second = store.attempts(study_id, 0)
        assert (first.attempt, first.uid, first.started_at, first.ended_at) == (1, "u-1", began, clock.now())
        assert (first.ended, first.host, first.failure) == ("lost", "host-b", lost)
        assert (second.attempt, second.ended, second.ended_at, second.host) == (2, None, None, None)
        clock.advance(3)
        end = failure()
        store.finish_trial(study_id, 0, 2, outcome("u-2", failure=end), None)
        assert store.attempts(study_id, 0)[0] == first
        second = store.attempts(study_id, 0)[1]
        assert (second.ended, second.ended_at, second.host) == ("failed", clock.now(), "host-a")
        assert second.failure == end
        with pytest.raises(NotFound):
            store.attempts(study_id, 1)

    def test_the_launch_of_a_measured_trial_and_of_a_cancelled_one(self, store: StudyStore) -> None:
        measured = trial_in(store, study(store), TrialState.MEASURED)
        (one,) = store.attempts(measured.study_id, measured.number)
        assert (one.ended, one.host, one.failure) == ("measured", "host-a", None)
        running = trial_in(store, study(store), TrialState.RUNNING)
        store.cancel_trial(running.study_id, running.number)
        (one,) = store.attempts(running.study_id, running.number)
        assert (one.ended, one.host, one.failure) == ("cancelled", None, None)

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
            self._refused(store, done, partial(store.finish_trial, done.study_id, done.number, 1, other, None))

    def test_only_the_current_attempt_can_finish_or_be_lost(self, store: StudyStore) -> None:
        study_id = study(store)
        store.add_trial(study_id, new_trial())
        store.start_attempt(study_id, 0, "u-1")
        store.lose_attempt(study_id, 0, 1, LOST)
        second = store.start_attempt(study_id, 0, "u-2")
        assert second.attempt == 2
        for attempt, uid in ((1, "u-1"), (3, "u-3"), (0, "u-0"), (2, "u-1")):
            finish = partial(store.finish_trial, study_id, 0, attempt, outcome(uid), verdict())
            self._refused(store, second, finish)
        for attempt in (0, 1, 3):
            self._refused(store, second, partial(store.lose_attempt, study_id, 0, attempt, LOST))
        assert store.finish_trial(study_id, 0, 2, outcome("u-2"), verdict()).state is TrialState.MEASURED

    def test_the_uid_of_an_attempt_is_used_once(self, store: StudyStore) -> None:
        first, second = study(store), study(store)
        for study_id in (first, second):
            store.add_trial(study_id, new_trial())
        store.start_attempt(first, 0, "u-1")
        store.lose_attempt(first, 0, 1, LOST)
        for study_id in (first, second):
            before = store.trial(study_id, 0)
            self._refused(store, before, partial(store.start_attempt, study_id, 0, "u-1"))

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
