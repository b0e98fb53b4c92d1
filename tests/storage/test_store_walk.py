"""Random walks: whatever is asked, in whatever order, both stores answer the same."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from autotune.domain.failure import FailureClass
from autotune.domain.study import Study, StudyState
from autotune.domain.trial import StudyPhase, TrialState
from autotune.engine.ports import StudyStore, TrialFilter
from autotune.errors import AutotuneError
from autotune.storage.sql_store import open_store
from tests.builders import failure, new_trial, outcome, space, study_spec, verdict
from tests.fakes import InMemoryStudyStore, ManualClock

STUDIES = st.integers(1, 2)
NUMBERS = st.integers(0, 3)
ATTEMPTS = st.sampled_from([1, 1, 1, 2, 2, 3])
OWNERS = st.sampled_from(["a", "b"])
LIMITS = st.one_of(st.none(), st.integers(0, 3))


def uid(study_id: int, number: int, attempt: int) -> str:
    return f"s{study_id}-{number}-{attempt}"


class TwoStores(RuleBasedStateMachine):
    """Every rule asks both and compares: values, or the class of the error."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.real = open_store(f"sqlite:///{Path(self.folder.name) / 'walk.db'}", self.clock.now)
        self.model = InMemoryStudyStore(self.clock.now)

    def both(self, call: Callable[[StudyStore], Any]) -> None:
        assert self._answer(call, self.real) == self._answer(call, self.model)

    def _answer(self, call: Callable[[StudyStore], Any], store: StudyStore) -> Any:
        try:
            answer = call(store)
        except AutotuneError as error:
            return type(error)
        return answer.model_copy(update={"uid": "random"}) if isinstance(answer, Study) else answer

    @initialize()
    def one_study(self) -> None:
        self.both(lambda store: store.create_study(study_spec(), space(), "first"))

    @rule(key=st.sampled_from(["first", "second", None]), seed=st.integers(0, 1))
    def create_study(self, key: str | None, seed: int) -> None:
        self.both(lambda store: store.create_study(study_spec(seed=seed), space(), key))

    @rule(study_id=STUDIES, phase=st.sampled_from(StudyPhase))
    def set_phase(self, study_id: int, phase: StudyPhase) -> None:
        self.both(lambda store: store.set_phase(study_id, phase))

    @rule(study_id=STUDIES, state=st.sampled_from(StudyState))
    def finish_study(self, study_id: int, state: StudyState) -> None:
        self.both(lambda store: store.finish_study(study_id, state, "because"))

    @rule(study_id=STUDIES)
    def resume_study(self, study_id: int) -> None:
        self.both(lambda store: store.resume_study(study_id))

    @rule(study_id=STUDIES, phase=st.sampled_from(StudyPhase))
    def add_trial(self, study_id: int, phase: StudyPhase) -> None:
        self.both(lambda store: store.add_trial(study_id, new_trial(phase)))

    @rule(study_id=STUDIES, number=NUMBERS, attempt=ATTEMPTS)
    def start_attempt(self, study_id: int, number: int, attempt: int) -> None:
        self.both(lambda store: store.start_attempt(study_id, number, uid(study_id, number, attempt)))

    @rule(study_id=STUDIES, number=NUMBERS)
    def start_the_next_attempt(self, study_id: int, number: int) -> None:
        def start(store: StudyStore) -> Any:
            name = uid(study_id, number, store.trial(study_id, number).attempt + 1)
            return store.start_attempt(study_id, number, name)

        self.both(start)

    @rule(
        study_id=STUDIES,
        number=NUMBERS,
        attempt=ATTEMPTS,
        tpot_ms=st.floats(0.1, 1e6),
        ttft_ms=st.floats(1, 1e3),
    )
    def measure(self, study_id: int, number: int, attempt: int, tpot_ms: float, ttft_ms: float) -> None:
        came = outcome(uid(study_id, number, attempt), tpot_ms=tpot_ms, ttft_ms=ttft_ms)
        judged = verdict(came.measurement)
        self.both(lambda store: store.finish_trial(study_id, number, attempt, came, judged))

    @rule(study_id=STUDIES, number=NUMBERS, attempt=ATTEMPTS, failed=st.sampled_from(FailureClass))
    def fail(self, study_id: int, number: int, attempt: int, failed: FailureClass) -> None:
        came = outcome(uid(study_id, number, attempt), failure=failure(failed))
        self.both(lambda store: store.finish_trial(study_id, number, attempt, came, None))

    @rule(study_id=STUDIES, number=NUMBERS, attempt=ATTEMPTS)
    def lose_attempt(self, study_id: int, number: int, attempt: int) -> None:
        lost = failure(FailureClass.INFRASTRUCTURE)
        self.both(lambda store: store.lose_attempt(study_id, number, attempt, lost))

    @rule(study_id=STUDIES, number=NUMBERS)
    def cancel_trial(self, study_id: int, number: int) -> None:
        self.both(lambda store: store.cancel_trial(study_id, number))

    @rule(owner=OWNERS, ttl_s=st.sampled_from([1.0, 5.0]))
    def hold_lease(self, owner: str, ttl_s: float) -> None:
        self.both(lambda store: store.hold_lease("right", owner, ttl_s))

    @rule(owner=OWNERS)
    def release_lease(self, owner: str) -> None:
        self.both(lambda store: store.release_lease("right", owner))
        self.both(lambda store: store.lease_owner("right"))

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(
        study_id=STUDIES,
        where=st.builds(
            TrialFilter,
            state=st.one_of(st.none(), st.sampled_from(TrialState)),
            phase=st.one_of(st.none(), st.sampled_from(StudyPhase)),
            failure_class=st.one_of(st.none(), st.sampled_from(FailureClass)),
            feasible=st.one_of(st.none(), st.booleans()),
        ),
        offset=st.integers(0, 2),
        limit=LIMITS,
    )
    def list_trials(self, study_id: int, where: TrialFilter, offset: int, limit: int | None) -> None:
        self.both(lambda store: store.trials(study_id, where, offset, limit))

    @rule(state=st.one_of(st.none(), st.sampled_from(StudyState)), offset=st.integers(0, 2))
    def list_studies(self, state: StudyState | None, offset: int) -> None:
        def ids(store: StudyStore) -> Any:
            page = store.studies(state, offset, 2)
            return [s.id for s in page.items], page.total

        self.both(ids)

    def _compare(self, study_id: int) -> None:
        self.both(lambda store: store.study(study_id))
        self.both(lambda store: store.trials(study_id))

    @invariant()
    def the_log_has_one_length(self) -> None:
        self.both(lambda store: store.last_event())

    def teardown(self) -> None:
        self.both(lambda store: list(store.events(0)))
        for study_id in (1, 2):
            self._compare(study_id)
        self.real.close()
        self.folder.cleanup()


TestTwoStores = TwoStores.TestCase
TestTwoStores.settings = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
