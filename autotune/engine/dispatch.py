"""Runs all studies of one store on one executor, one dispatcher at a time."""

from __future__ import annotations

from collections.abc import Callable

from autotune.domain.study import Study, StudyState
from autotune.domain.trial import TrialState
from autotune.engine.device_desk import DeviceDesk
from autotune.engine.ports import Clock, DeviceSource, ProposerSource, StudyStore, TrialExecutor
from autotune.engine.study_loop import StudyLoop
from autotune.errors import Conflict, Unavailable

LEASE = "dispatcher"
LEASE_S = 15.0
TURN_S = 0.25
GIVE_BACK_S = 3.0  # what a server held is free a second or two after its end


class Dispatcher:
    """Finds running studies, moves each on, stores what comes back. Not thread-safe."""

    def __init__(
        self,
        store: StudyStore,
        executor: TrialExecutor,
        proposers: ProposerSource,
        clock: Clock,
        *,
        owner: str,
        report: Callable[[str], None],
        devices: DeviceSource | None = None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._proposers = proposers
        self._clock = clock
        self._owner = owner
        self._report = report
        self._desk = DeviceDesk(store, devices, clock) if devices is not None else None
        self._waits: dict[int, str] = {}  # what was last said of a study that waits
        self._loops: dict[int, StudyLoop] = {}
        self._tidied = False

    def hold(self) -> bool:
        """Take or renew the lease; only its holder may turn."""
        return self._store.hold_lease(LEASE, self._owner, LEASE_S)

    def release(self) -> None:
        """Give the lease back, so that the next dispatcher need not wait for it to run out."""
        self._store.release_lease(LEASE, self._owner)

    def stop(self) -> None:
        """Leave nothing running; the studies go on where they were when a dispatcher starts again."""
        for loop in self._loops.values():
            loop.suspend()
        if self._desk is not None:
            self._desk.give_back(GIVE_BACK_S)
        self._executor.close()
        self.release()

    def turn(self) -> None:
        """One round: notice studies, start attempts, wait a moment for outcomes, store them."""
        if not self._tidied:
            self._tidy()
        self._notice()
        if self._desk is not None:
            self._desk.look_round()
            self._desk.settle()
        for loop in list(self._loops.values()):
            self._advance(loop)
        for outcome in self._executor.collect(TURN_S):
            for loop in self._loops.values():
                loop.ingest(outcome)
            self._executor.acknowledge(outcome.uid)

    def _notice(self) -> None:
        running = {s.id: s for s in self._store.studies(StudyState.RUNNING, limit=1000).items}
        for study_id in self._loops.keys() - running.keys():
            loop = self._loops.pop(study_id)
            self._report(f"study {study_id} is {self._store.study(study_id).state}")
            loop.cancel()
        for study_id in sorted(running.keys() - self._loops.keys()):
            self._loops[study_id] = self._loop(running[study_id])
            self._report(f"study {study_id} taken up")

    def _tidy(self) -> None:
        """Once: end attempts of studies that ended while no dispatcher looked; they hold slots and devices."""
        over = {s.id: s for s in self._store.studies(limit=1000).items if s.state.is_finished}
        for study_id, trials in self._store.briefs(sorted(over)).items():
            if any(trial.state is TrialState.RUNNING for trial in trials):
                self._loop(over[study_id]).cancel()
                self._report(f"study {study_id} is {over[study_id].state}: what still ran of it was ended")
        self._tidied = True

    def _loop(self, study: Study) -> StudyLoop:
        return StudyLoop(study, self._store, self._executor, self._proposers, self._clock, self._desk)

    def _advance(self, loop: StudyLoop) -> None:
        try:
            if loop.advance(self._executor.capacity()):
                self._waits.pop(loop.study.id, None)
        except Conflict as error:
            # The API ended the study between our look and our write; the next turn notices.
            self._report(f"study {loop.study.id}: {error.message}")
        except Unavailable as error:
            if self._waits.get(loop.study.id) != error.message:
                self._report(f"study {loop.study.id} waits: {error.message}")
            self._waits[loop.study.id] = error.message
