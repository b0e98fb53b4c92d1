"""Stand-ins for the engine's ports, each held to the contract of the real thing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.knobs import KnobValue
from autotune.domain.space import SearchSpace
from autotune.domain.study import Study
from autotune.domain.trial import StudyPhase, Trial
from autotune.errors import Unavailable
from tests.memory_store import InMemoryStudyStore

__all__ = [
    "InMemoryStudyStore",
    "ManualClock",
    "ScriptedExecutor",
    "ScriptedProposer",
    "ScriptedProposerSource",
]


class ManualClock:
    """Implements Clock; time moves only by `sleep` and `advance`. Thread-safe."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> datetime:
        with self._lock:
            return self._now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += timedelta(seconds=seconds)


class ScriptedExecutor:
    """Implements TrialExecutor: what a job comes to is a function of the job.

    `play` gives the outcome of a job, or None while it shall stay in flight (`arrive` ends it later). An
    outcome is delivered by every `collect` until it is acknowledged: the contract allows it, so callers must
    bear it. Where there is nothing to deliver, `collect` lets the timeout pass on `clock`.

    Recorded, in order: `submitted` jobs (a repeated submit is in `repeated`), `adopted` uids that were known,
    `acknowledged` and `cancelled` uids, `closed`. One executor may serve several dispatchers one after the
    other, as attempts survive them; `forget` drops an attempt as if its host had lost every trace of it.
    While `available` is False, submit raises Unavailable. `host_names` is what `hosts` gives.
    """

    def __init__(
        self,
        play: Callable[[TrialJob], TrialOutcome | None],
        slots: int = 1,
        clock: ManualClock | None = None,
    ) -> None:
        self._play = play
        self._clock = clock
        self._lock = threading.RLock()
        self._jobs: dict[str, TrialJob] = {}
        self._arrived: dict[str, TrialOutcome] = {}
        self.slots = slots
        self.available = True
        self.host_names: tuple[str, ...] = ("host-a",)
        self.submitted: list[TrialJob] = []
        self.repeated: list[TrialJob] = []
        self.adopted: list[str] = []
        self.acknowledged: list[str] = []
        self.cancelled: list[str] = []
        self.closed = False

    def capacity(self) -> int:
        with self._lock:
            return max(0, self.slots - len(self._jobs))

    def hosts(self) -> Sequence[str]:
        return self.host_names

    def hosts_with_room(self) -> Sequence[str]:
        return self.host_names if self.capacity() else ()

    def submit(self, job: TrialJob) -> None:
        with self._lock:
            if not self.available:
                raise Unavailable("the scripted executor takes nothing now")
            if job.uid in self._jobs or job.uid in self.acknowledged or job.uid in self.cancelled:
                self.repeated.append(job)
                return
            self.submitted.append(job)
            self._jobs[job.uid] = job
            outcome = self._play(job)
            if outcome is not None:
                self._arrived[job.uid] = outcome

    def adopt(self, job: TrialJob) -> bool:
        with self._lock:
            if job.uid not in self._jobs:
                return False
            self.adopted.append(job.uid)
            return True

    def collect(self, timeout_s: float) -> Sequence[TrialOutcome]:
        with self._lock:
            arrived = list(self._arrived.values())
        if not arrived and self._clock is not None:
            self._clock.sleep(timeout_s)
        return arrived

    def acknowledge(self, uid: str) -> None:
        with self._lock:
            self.acknowledged.append(uid)
            self.forget(uid)

    def cancel(self, uid: str) -> None:
        with self._lock:
            if uid in self._jobs:
                self.cancelled.append(uid)
                self.forget(uid)

    def close(self) -> None:
        self.closed = True

    def in_flight(self) -> list[str]:
        """Uids that were submitted and neither acknowledged, cancelled nor forgotten."""
        with self._lock:
            return list(self._jobs)

    def arrive(self, outcome: TrialOutcome) -> None:
        """The attempt of that uid ends now."""
        with self._lock:
            if outcome.uid in self._jobs:
                self._arrived[outcome.uid] = outcome

    def forget(self, uid: str) -> None:
        """No trace of the attempt is left."""
        with self._lock:
            self._jobs.pop(uid, None)
            self._arrived.pop(uid, None)


class ScriptedProposer:
    """Implements Proposer: asks come from a list, then None. What it is told is kept."""

    def __init__(self, script: Iterable[Mapping[str, KnobValue]] = ()) -> None:
        self._script = list(script)
        self.asks = 0
        self.pending_trials: list[Trial] = []
        self.told: list[Trial] = []

    def ask(self) -> Mapping[str, KnobValue] | None:
        self.asks += 1
        return self._script[self.asks - 1] if self.asks <= len(self._script) else None

    def pending(self, trial: Trial) -> None:
        self.pending_trials.append(trial)

    def tell(self, trial: Trial) -> None:
        self.told.append(trial)


class ScriptedProposerSource:
    """Implements ProposerSource: each new proposer goes on in the script where the stored trials end."""

    def __init__(self, script: Iterable[Mapping[str, KnobValue]] = ()) -> None:
        self._script = list(script)
        self.made: list[ScriptedProposer] = []

    def proposer(self, study: Study, space: SearchSpace, trials: Sequence[Trial]) -> ScriptedProposer:
        asked = sum(trial.phase is StudyPhase.SEARCH for trial in trials)
        proposer = ScriptedProposer(self._script[asked:])
        for trial in trials:
            (proposer.tell if trial.state.is_finished else proposer.pending)(trial)
        self.made.append(proposer)
        return proposer
