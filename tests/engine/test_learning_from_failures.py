"""A whole study whose failures name what they need: no later candidate asks for less."""

from __future__ import annotations

from autotune.domain.failure import Bound, FailureClass, FailureValue
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.study import StudyState
from autotune.domain.trial import StudyPhase, TrialState
from autotune.engine.dispatch import Dispatcher
from autotune.proposers.tpe import TpeSource
from tests import builders
from tests.engine.test_study_service import service
from tests.fakes import InMemoryStudyStore, ManualClock, ScriptedExecutor

NEEDED = FailureValue(name="needed", value=700, unit="MB", setting="HCCL_BUFFSIZE", bound=Bound.AT_LEAST)


def play(job: TrialJob) -> TrialOutcome:
    """A buffer that is set needs 700 MB; unset is enough."""
    if int(job.plan.roles["server"].env.get("HCCL_BUFFSIZE", "700")) < 700:
        failure = builders.failure(failure_class=FailureClass.INVALID_CONFIG)
        return builders.outcome(job, failure=failure.model_copy(update={"values": (NEEDED,)}))
    return builders.outcome(job)


def test_one_failure_is_enough() -> None:
    clock = ManualClock()
    store = InMemoryStudyStore(clock.now)
    executor = ScriptedExecutor(play, slots=1, clock=clock)
    study = store.create_study(builders.study_spec(parallel_trials=1), builders.space())
    dispatcher = Dispatcher(store, executor, TpeSource(), clock, owner="one", report=lambda _: None)
    for _ in range(200):
        dispatcher.turn()
        if store.study(study.id).state.is_finished:
            break
    trials = store.trials(study.id).items
    assert store.study(study.id).state is StudyState.DONE
    failed = [t for t in trials if t.state is TrialState.FAILED]
    assert len(failed) == 1
    later = [t for t in trials if t.phase is StudyPhase.SEARCH and t.number > failed[0].number]
    words = f"HCCL_BUFFSIZE >= 700, learned from trial {failed[0].number}"
    assert any(words in t.repairs for t in later)
    buffers = [int(t.plan.roles["server"].env.get("HCCL_BUFFSIZE", "700")) for t in later]
    assert min(buffers) == 700
    (bound,) = service(store).overview(study.id).learned
    assert str(bound) == words
    assert service(store).overviews().items[0].learned == ()
