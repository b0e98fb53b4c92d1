"""Short ways to a study and to a trial in any state, for the contract of the store."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.domain.failure import FailureClass
from autotune.domain.study import StudyState
from autotune.domain.trial import Trial, TrialState
from autotune.engine.ports import Event, StudyStore
from tests.builders import failure, new_trial, outcome, space, study_spec, verdict

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
