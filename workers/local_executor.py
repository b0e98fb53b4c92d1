"""Attempts as detached processes of this host, without Ray: for one machine, and for tests.

Everything that matters lies in the attempt's folder, so that another dispatcher can take over:

* `job.json` is written once; who writes it starts the runner, which makes a submission happen at most once;
* `runner.json` names the process that was started, `started` the one that runs the attempt;
* `outcome.json` is the end. An attempt that never began is ended by claiming `started` in its place first,
  so that a late runner finds the attempt taken.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from autotune.domain.failure import Phase
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.errors import Unavailable
from workers.attempt_end import end_attempt, wait_until
from workers.attempt_files import AlreadyStarted, AttemptFiles, Runner
from workers.lost_attempt import give_up, lost
from workers.marked_processes import process_stat

START_GRACE_S = 10.0  # a job without a runner for this long was left by a dispatcher that died in between
TERM_S = 3.0  # how long a cancelled runner may take to end its servers and itself
KILL_S = 5.0
_POLL_S = 0.05
_LOG_MODE = 0o600


@dataclass
class _Flight:
    """One attempt that is not acknowledged yet."""

    files: AttemptFiles
    since: float = field(default_factory=time.monotonic)
    outcome: TrialOutcome | None = None


class LocalExecutor:
    """A `TrialExecutor` over the folder of attempts. Thread-safe.

    `slots` is how many attempts may be in flight; one counts until it is acknowledged. `command` starts a
    runner; `--attempts DIR --templates DIR UID` is appended to it.
    """

    def __init__(
        self,
        attempts_root: Path,
        templates_dir: Path,
        slots: int,
        command: Sequence[str] | None = None,
        start_grace_s: float = START_GRACE_S,
    ) -> None:
        self._root = attempts_root.resolve()
        # -P: a folder named `workers` in the working directory must not stand in for ours.
        self._command = list(command or [sys.executable, "-P", "-m", "workers.attempt"])
        self._command += ["--attempts", str(self._root), "--templates", str(templates_dir.resolve())]
        self._slots = slots
        self._start_grace_s = start_grace_s
        self._flights: dict[str, _Flight] = {}
        self._exit_codes: dict[int, int | None] = {}  # our children; None while they run
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
            files = AttemptFiles(self._root, job.uid)
            try:
                if files.place_job(job):
                    self._start(files)
            except OSError as error:
                raise Unavailable(f"attempt {job.uid} cannot be started on this host: {error}") from error
            self._flights[job.uid] = _Flight(files)

    def adopt(self, job: TrialJob) -> bool:
        with self._lock:
            if job.uid in self._flights:
                return True
            files = AttemptFiles(self._root, job.uid)
            if not (files.folder / "job.json").exists():
                return False
            launched = _launched(files)
            if files.runner() is None and (launched is None or not launched.is_running) and give_up(files, None):
                return False
            self._flights[job.uid] = _Flight(files)
            return True

    def collect(self, timeout_s: float) -> Sequence[TrialOutcome]:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._reap()
                for flight in self._flights.values():
                    flight.outcome = flight.outcome or self._look(flight)
                found = [flight.outcome for flight in self._flights.values() if flight.outcome is not None]
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            time.sleep(min(_POLL_S, left_s))

    def acknowledge(self, uid: str) -> None:
        """Forget the attempt. Its folder stays: the logs are read later."""
        with self._lock:
            self._flights.pop(uid, None)

    def cancel(self, uid: str) -> None:
        """End the attempt and all its processes. Takes 2 s as a rule, and 30 s at most."""
        with self._lock:
            self._flights.pop(uid, None)
        files = AttemptFiles(self._root, uid)
        if not files.folder.is_dir():
            return
        with contextlib.suppress(AlreadyStarted):
            files.claim()  # from here on nothing of this attempt can start
        for runner in (files.runner(), _launched(files)):
            if runner is not None and runner.pid != os.getpid():
                self._end(runner)
        end_attempt(self._root, uid)

    def close(self) -> None:
        """Attempts in flight go on: each is a session of its own."""
        with self._lock:
            self._flights.clear()

    def _start(self, files: AttemptFiles) -> None:
        log = str(files.log("runner"))
        try:
            pid = os.posix_spawn(
                self._command[0],
                [*self._command, files.uid],
                _environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _LOG_MODE),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD],
            )
        except OSError:
            (files.folder / "job.json").unlink()  # nothing runs: the job may be submitted again
            raise
        self._exit_codes[pid] = None
        stat = process_stat(pid)  # our child: it is there, at least as a zombie
        assert stat is not None
        runner = Runner(pid=pid, started=stat.started, host=socket.gethostname())
        draft = files.folder / f".runner.{secrets.token_hex(4)}"
        try:
            draft.write_text(json.dumps(runner._asdict()), encoding="utf-8")
            draft.replace(files.folder / "runner.json")
        except OSError:
            os.killpg(pid, signal.SIGKILL)  # who gets Unavailable starts the trial anew
            raise

    def _look(self, flight: _Flight) -> TrialOutcome | None:
        """The outcome of an attempt that has ended; None while it runs or is about to start."""
        files = flight.files
        runner = files.runner()
        launched = _launched(files)
        # In this order: a runner that was dead a moment ago has written all that it will ever write.
        running = [r for r in (runner, launched) if r is not None and r.is_running and r.pid != os.getpid()]
        try:
            outcome = files.outcome()
        except ValidationError as error:
            return lost(files, Phase.STOP, f"outcome.json is damaged: {error.error_count()} entries do not fit", None)
        if outcome is not None or running:
            return outcome
        last = runner or launched
        if last is None and time.monotonic() - flight.since < self._start_grace_s:
            return None
        exit_code = self._exit_codes.get(last.pid) if last is not None else None
        if runner is None:
            return give_up(files, exit_code)  # None when it began just now, after all
        return lost(files, Phase.LAUNCH, f"the runner of the attempt (pid {runner.pid}) died", exit_code)

    def _reap(self) -> None:
        """Collect ended children, so that none stays behind as a zombie."""
        for pid in [pid for pid, code in self._exit_codes.items() if code is None]:
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                del self._exit_codes[pid]
                continue
            if done:
                self._exit_codes[pid] = os.waitstatus_to_exitcode(status)

    def _end(self, runner: Runner) -> None:
        """TERM, then KILL, to the process group that the runner leads."""

        def gone() -> bool:
            with self._lock:
                self._reap()
            return not runner.is_running

        for number, limit_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            if gone():
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(runner.pid, number)
            wait_until(gone, limit_s)


def _environment() -> dict[str, str]:
    """From nothing, so that a runner depends on its job alone. Without the attempt's mark: it is no server."""
    wanted = {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": "/"}
    return {name: os.environ.get(name, default) for name, default in wanted.items()}


def _launched(files: AttemptFiles) -> Runner | None:
    """The process that was started for the attempt, whether or not it has claimed it by now."""
    try:
        return Runner(**json.loads((files.folder / "runner.json").read_bytes()))
    except FileNotFoundError:
        return None
