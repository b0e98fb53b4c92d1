"""Attempts on virtual time, in threads of this process: a study of simulated servers in seconds.

The folder of an attempt is kept as the other executors keep it: `job.json` makes a submission happen at most once,
`started` names this process, `outcome.json` is the end. An attempt ends with the process that runs it; a successor
finds it lost and its trial is run again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from autotune.domain.failure import Phase
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.engine.ports import TemplateSource
from autotune.errors import Unavailable
from workers.attempt_files import AlreadyStarted, AttemptFiles
from workers.host_templates import HostTemplates
from workers.lost_attempt import give_up, lost
from workers.simulator.virtual.trial import run_trial

CANCEL_S = 10.0  # a cancelled trial ends with its next step
START_GRACE_S = 10.0  # a job that nobody has claimed for so long was left by a dispatcher that died in between
_POLL_S = 0.05  # for attempts that another process runs

RunTrial = Callable[[TrialJob, AttemptFiles, TemplateSource, threading.Event], TrialOutcome]


@dataclass
class _Flight:
    """One attempt that is not acknowledged yet. `work` is None where another process, or executor, runs it."""

    files: AttemptFiles
    work: Future[TrialOutcome] | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)
    since: float = field(default_factory=time.monotonic)
    outcome: TrialOutcome | None = None


class VirtualExecutor:
    """A `TrialExecutor` over the folder of attempts. Thread-safe.

    `slots` is how many attempts may be in flight; one counts until it is acknowledged. Templates that start
    real servers are refused: their trials fail with class infrastructure.
    """

    def __init__(self, attempts_root: Path, templates_dir: Path, slots: int, run: RunTrial = run_trial) -> None:
        self._root = attempts_root.resolve()
        self._templates = HostTemplates(templates_dir.resolve())
        self._slots = slots
        self._run = run
        self._pool = ThreadPoolExecutor(slots, thread_name_prefix="trial")
        self._flights: dict[str, _Flight] = {}
        self._lock = threading.RLock()

    def capacity(self) -> int:
        with self._lock:
            return max(0, self._slots - len(self._flights))

    def hosts(self) -> Sequence[str]:
        return (socket.gethostname(),)

    def hosts_with_room(self) -> Sequence[str]:
        return self.hosts() if self.capacity() else ()

    def submit(self, job: TrialJob) -> None:
        with self._lock:
            if job.uid in self._flights:
                return
            if self.capacity() == 0:
                raise Unavailable(f"all {self._slots} slots of this host are taken")
            flight = _Flight(AttemptFiles(self._root, job.uid))
            try:
                if flight.files.place_job(job):
                    flight.files.claim()
                    flight.work = self._pool.submit(self._work, job, flight.files, flight.cancelled)
            except AlreadyStarted:
                flight.outcome = lost(flight.files, Phase.PLACE, "the attempt was cancelled before it began")
            except OSError as error:
                raise Unavailable(f"attempt {job.uid} cannot be started on this host: {error}") from error
            self._flights[job.uid] = flight

    def adopt(self, job: TrialJob) -> bool:
        with self._lock:
            if job.uid in self._flights:
                return True
            files = AttemptFiles(self._root, job.uid)
            if not files.has_job() or (files.runner() is None and give_up(files)):
                return False
            self._flights[job.uid] = _Flight(files)
            return True

    def collect(self, timeout_s: float) -> Sequence[TrialOutcome]:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                flights = list(self._flights.values())
            for flight in flights:
                flight.outcome = flight.outcome or _look(flight)
            found = [flight.outcome for flight in flights if flight.outcome is not None]
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            ours = [flight.work for flight in flights if flight.work is not None]
            if len(ours) < len(flights) or not ours:
                left_s = min(_POLL_S, left_s)
            if ours:
                wait(ours, left_s, FIRST_COMPLETED)
            else:
                time.sleep(left_s)

    def acknowledge(self, uid: str) -> None:
        """Forget the attempt. Its folder stays: the logs are read later."""
        with self._lock:
            self._flights.pop(uid, None)

    def cancel(self, uid: str) -> None:
        """End the attempt; takes as long as one step of its simulation."""
        with self._lock:
            flight = self._flights.pop(uid, None)
        files = AttemptFiles(self._root, uid)
        if not files.folder.is_dir():
            return
        with contextlib.suppress(AlreadyStarted):
            files.claim()  # from here on nothing of this attempt can start
        if flight is not None and flight.work is not None:
            flight.cancelled.set()
            wait([flight.work], CANCEL_S)

    def close(self) -> None:
        """Attempts in flight go on, as long as this process does."""
        with self._lock:
            self._flights.clear()
        self._pool.shutdown(wait=False)

    def _work(self, job: TrialJob, files: AttemptFiles, cancelled: threading.Event) -> TrialOutcome:
        outcome = self._run(job, files, self._templates, cancelled)
        files.write_outcome(outcome)
        return outcome


def _look(flight: _Flight) -> TrialOutcome | None:
    """The outcome of an attempt that has ended; None while it runs."""
    files, work = flight.files, flight.work
    if work is not None:
        if not work.done():
            return None
        error = work.exception()
        if error is None:
            return work.result()
        words = "".join(traceback.format_exception(error))
        outcome = lost(files, Phase.LAUNCH, f"the worker failed: {words}")
        files.write_outcome(outcome)
        return outcome
    runner = files.runner()
    running = runner is not None and runner.is_running  # in this order: who is dead now has written all it will
    try:
        ended = files.outcome()
    except ValidationError as failure:
        return lost(files, Phase.STOP, f"outcome.json is damaged: {failure.error_count()} entries do not fit")
    if ended is not None or running:
        return ended
    if runner is not None:
        return lost(files, Phase.LAUNCH, f"the process that ran the attempt (pid {runner.pid}) has ended")
    return give_up(files) if time.monotonic() - flight.since > START_GRACE_S else None
