"""What a StudyStore promises about studies, and about what is not there."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from autotune.domain.study import StudyState
from autotune.domain.trial import StudyPhase, TrialState
from autotune.engine.ports import StudyStore
from autotune.errors import Conflict, InvalidRequest, NotFound
from tests.builders import new_trial, outcome, space, study_spec, verdict
from tests.contracts.trial_steps import FINAL, LOST, kinds, study, trial_in
from tests.fakes import ManualClock


class StoreOfStudies:
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
