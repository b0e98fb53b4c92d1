"""The StudyStore of tests that are about something else: no file, no SQL, the same contract."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from autotune.domain.device import Placement, Quarantine
from autotune.domain.failure import Failure
from autotune.domain.job import TrialOutcome
from autotune.domain.objective import Verdict
from autotune.domain.space import SearchSpace
from autotune.domain.study import Study, StudySpec, StudyState
from autotune.domain.trial import LOST, Attempt, NewTrial, StudyPhase, Trial, TrialState, attempt_of, may_become
from autotune.engine.ports import ANY_TRIAL, Event, Page, TrialBrief, TrialFilter
from autotune.errors import Conflict, InvalidRequest, NotFound, TrialAlreadyFinished
from autotune.storage.event_data import EventKind, device_data, study_data, trial_data
from tests.memory_devices import InMemoryDevices


class InMemoryStudyStore(InMemoryDevices):
    """Implements StudyStore with dictionaries and one lock."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.RLock()
        self._studies: dict[int, Study] = {}
        self._spaces: dict[int, SearchSpace] = {}
        self._trials: dict[int, list[Trial]] = {}
        self._uids: dict[tuple[int, int], str] = {}
        self._used_uids: set[str] = set()
        self._attempts: dict[tuple[int, int], list[Attempt]] = {}
        self._keys: dict[str, tuple[StudySpec, int]] = {}
        self._events: list[Event] = []
        self._leases: dict[str, tuple[str, datetime]] = {}

    def close(self) -> None:
        """Nothing to let go of."""

    def create_study(self, spec: StudySpec, space: SearchSpace, idempotency_key: str | None = None) -> Study:
        with self._lock:
            if idempotency_key is not None:
                if not 0 < len(idempotency_key) <= 200:
                    raise InvalidRequest("bad key")
                if idempotency_key in self._keys:
                    asked, study_id = self._keys[idempotency_key]
                    if asked != spec:
                        raise Conflict("this idempotency key was used for another study")
                    return self._studies[study_id]
            study = Study(
                id=len(self._studies) + 1,
                uid=uuid.uuid4().hex[:12],
                spec=spec,
                state=StudyState.RUNNING,
                phase=StudyPhase.GATE,
                created_at=self._now(),
            )
            self._spaces[study.id] = space
            self._trials[study.id] = []
            if idempotency_key is not None:
                self._keys[idempotency_key] = (spec, study.id)
            return self._put_study(study, EventKind.STUDY_CREATED)

    def study(self, study_id: int) -> Study:
        with self._lock:
            if study_id not in self._studies:
                raise NotFound(f"there is no study {study_id}")
            return self._studies[study_id]

    def space_of(self, study_id: int) -> SearchSpace:
        with self._lock:
            return self._spaces[self.study(study_id).id]

    def studies(self, state: StudyState | None = None, offset: int = 0, limit: int = 100) -> Page[Study]:
        with self._lock:
            found = [s for s in reversed(self._studies.values()) if state in (None, s.state)]
            return Page(items=tuple(found[offset : offset + limit]), total=len(found))

    def set_phase(self, study_id: int, phase: StudyPhase) -> None:
        with self._lock:
            study = self._running(study_id)
            if study.phase is not phase:
                self._put_study(study.model_copy(update={"phase": phase}), EventKind.STUDY_PHASE)

    def finish_study(self, study_id: int, state: StudyState, finding: str) -> Study:
        with self._lock:
            if not state.is_finished:
                raise InvalidRequest(f"{state} is not a state in which a study ends")
            study = self._running(study_id)
            for trial in list(self._trials[study_id]):
                if trial.state is TrialState.WAITING:
                    self.cancel_trial(study_id, trial.number)
            end = {"state": state, "finding": finding, "finished_at": self._now()}
            return self._put_study(study.model_copy(update=end), EventKind.STUDY_FINISHED)

    def resume_study(self, study_id: int) -> Study:
        with self._lock:
            study = self.study(study_id)
            if study.state not in (StudyState.CANCELLED, StudyState.FAILED):
                raise Conflict(f"study {study_id} is {study.state}")
            start = {"state": StudyState.RUNNING, "finding": None, "finished_at": None}
            return self._put_study(study.model_copy(update=start), EventKind.STUDY_RESUMED)

    def add_trial(self, study_id: int, trial: NewTrial) -> Trial:
        with self._lock:
            self._running(study_id)
            stored = Trial(
                **dict(trial),
                study_id=study_id,
                number=len(self._trials[study_id]),
                state=TrialState.WAITING,
                created_at=self._now(),
            )
            self._trials[study_id].append(stored)
            self._tell(EventKind.TRIAL_ADDED, study_id, stored.number, trial_data(stored))
            return stored

    def start_attempt(self, study_id: int, number: int, uid: str, placement: Placement | None = None) -> Trial:
        with self._lock:
            trial = self._movable(study_id, number, TrialState.RUNNING)
            self._running(study_id)
            if uid in self._used_uids:
                raise Conflict(f"the attempt {uid} was started before")
            if placement is not None:
                self.take(placement, uid, self._now())
            self._used_uids.add(uid)
            self._uids[study_id, number] = uid
            begun = Attempt(attempt=trial.attempt + 1, uid=uid, started_at=self._now())
            self._attempts.setdefault((study_id, number), []).append(begun)
            change = {"state": TrialState.RUNNING, "attempt": trial.attempt + 1, "started_at": self._now()}
            return self._put_trial(trial, change, EventKind.TRIAL_STARTED)

    def finish_trial(
        self, study_id: int, number: int, attempt: int, outcome: TrialOutcome, verdict: Verdict | None
    ) -> Trial:
        with self._lock:
            state = TrialState.FAILED if outcome.failure else TrialState.MEASURED
            trial = self._movable(study_id, number, state)
            if trial.attempt != attempt or self._uids[study_id, number] != outcome.uid:
                raise Conflict("the outcome is of another attempt")
            change = {
                "state": state,
                "measurement": outcome.measurement,
                "failure": outcome.failure,
                "verdict": verdict,
                "provenance": outcome.provenance,
                "durations_s": outcome.durations_s,
                "log_tail": outcome.log_tail,
                "effective": outcome.effective,
                "counted": outcome.counted,
                "finished_at": self._now(),
            }
            self._end_attempt(trial, state.value)
            return self._put_trial(trial, change, EventKind.TRIAL_FINISHED)

    def lose_attempt(self, study_id: int, number: int, attempt: int, failure: Failure) -> Trial:
        with self._lock:
            trial = self._movable(study_id, number, TrialState.WAITING)
            if trial.attempt != attempt:
                raise Conflict("that attempt is not the current one")
            change = {"state": TrialState.WAITING, "started_at": None}
            self._end_attempt(trial, LOST, failure)
            return self._put_trial(trial, change, EventKind.ATTEMPT_LOST, failure)

    def attempts(self, study_id: int, number: int) -> Sequence[Attempt]:
        with self._lock:
            trial = self.trial(study_id, number)
            kept = self._attempts.get((study_id, number), [])
            return [attempt_of(trial, a.attempt, a.uid, (a.started_at, a.ended_at), a.ended, a.failure) for a in kept]

    def cancel_trial(self, study_id: int, number: int) -> Trial:
        with self._lock:
            trial = self._movable(study_id, number, TrialState.CANCELLED)
            if trial.state is TrialState.RUNNING:
                self._end_attempt(trial, TrialState.CANCELLED.value)
            change = {"state": TrialState.CANCELLED, "finished_at": self._now()}
            return self._put_trial(trial, change, EventKind.TRIAL_CANCELLED)

    def trial(self, study_id: int, number: int) -> Trial:
        with self._lock:
            self.study(study_id)
            if not 0 <= number < len(self._trials[study_id]):
                raise NotFound(f"study {study_id} has no trial {number}")
            return self._trials[study_id][number]

    def trials(
        self, study_id: int, where: TrialFilter = ANY_TRIAL, offset: int = 0, limit: int | None = None
    ) -> Page[Trial]:
        with self._lock:
            self.study(study_id)
            found = [t for t in self._trials[study_id] if _matches(t, where)]
            end = None if limit is None else offset + limit
            return Page(items=tuple(found[offset:end]), total=len(found))

    def briefs(self, study_ids: Sequence[int]) -> Mapping[int, Sequence[TrialBrief]]:
        with self._lock:
            return {i: [_brief(t) for t in self._trials[i]] for i in study_ids if self._trials.get(i)}

    def events(self, after: int, limit: int = 500) -> Sequence[Event]:
        with self._lock:
            return self._events[max(after, 0) : max(after, 0) + limit]

    def last_event(self) -> int:
        with self._lock:
            return len(self._events)

    def hold_lease(self, name: str, owner: str, ttl_s: float) -> bool:
        with self._lock:
            holder, until = self._leases.get(name, (owner, self._now()))
            if holder != owner and self._now() < until:
                return False
            self._leases[name] = (owner, self._now() + timedelta(seconds=ttl_s))
            return True

    def release_lease(self, name: str, owner: str) -> None:
        with self._lock:
            if name in self._leases and self._leases[name][0] == owner:
                del self._leases[name]

    def lease_owner(self, name: str) -> str | None:
        with self._lock:
            holder, until = self._leases.get(name, (None, self._now()))
            return holder if self._now() < until else None

    def _running(self, study_id: int) -> Study:
        study = self.study(study_id)
        if study.state.is_finished:
            raise Conflict(f"study {study_id} is {study.state}")
        return study

    def _movable(self, study_id: int, number: int, state: TrialState) -> Trial:
        trial = self.trial(study_id, number)
        if trial.state.is_finished:
            raise TrialAlreadyFinished(f"trial {number} of study {study_id} is {trial.state} already")
        if not may_become(trial.state, state):
            raise Conflict(f"trial {number} of study {study_id} is {trial.state} and cannot become {state}")
        return trial

    def _end_attempt(self, trial: Trial, ended: str, lost: Failure | None = None) -> None:
        kept = self._attempts[trial.study_id, trial.number]
        self.end(kept[-1].uid, self._now())
        kept[-1] = kept[-1].model_copy(update={"ended": ended, "ended_at": self._now(), "failure": lost})

    def tell_of_device(self, kind: EventKind, quarantine: Quarantine) -> None:
        with self._lock:
            for (study_id, number), kept in self._attempts.items():
                if quarantine.attempt in {attempt.uid for attempt in kept}:
                    self._tell(kind, study_id, number, device_data(quarantine))

    def _put_study(self, study: Study, kind: EventKind) -> Study:
        self._studies[study.id] = study
        self._tell(kind, study.id, None, study_data(study))
        return study

    def _put_trial(
        self, trial: Trial, change: Mapping[str, Any], kind: EventKind, lost: Failure | None = None
    ) -> Trial:
        changed = trial.model_copy(update=dict(change))
        self._trials[trial.study_id][trial.number] = changed
        self._tell(kind, trial.study_id, trial.number, trial_data(changed, lost))
        return changed

    def _tell(self, kind: EventKind, study_id: int, number: int | None, data: dict[str, Any]) -> None:
        self._events.append(
            Event(
                seq=len(self._events) + 1,
                at=self._now(),
                kind=kind.value,
                study_id=study_id,
                trial_number=number,
                data=data,
            )
        )


def _brief(trial: Trial) -> TrialBrief:
    return TrialBrief(
        number=trial.number,
        state=trial.state,
        phase=trial.phase,
        label=trial.label,
        objective=trial.cost,
        feasible=None if trial.verdict is None else trial.verdict.feasible,
    )


def _matches(trial: Trial, where: TrialFilter) -> bool:
    failure_class = trial.failure.failure_class if trial.failure else None
    return (
        where.state in (None, trial.state)
        and where.phase in (None, trial.phase)
        and where.failure_class in (None, failure_class)
        and (where.feasible is None or (trial.verdict is not None and trial.verdict.feasible is where.feasible))
    )
