"""A process that `autotune up` keeps alive: started with its end tied to ours, restarted when it dies."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

log = structlog.get_logger("up")

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
RESTART_FIRST_S = 0.5
RESTART_MOST_S = 10.0
STEADY_S = 30.0  # a child that lived this long starts with a fresh patience when it dies


def _end_with_parent() -> None:
    """In the child: no terminal signals of our group, and SIGTERM when `up` itself is killed."""
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class ChildProcess:
    """One child of `up`. `start` again after an end waits longer each time that it died soon."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], log_file: Path) -> None:
        self.name = name
        self._argv = list(argv)
        self._env = dict(env)
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._patience = RESTART_FIRST_S
        self._not_before = 0.0

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def remember(self, extra: Mapping[str, str]) -> None:
        """Environment for later starts."""
        self._env.update(extra)

    def start(self) -> None:
        with self._log_file.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_end_with_parent,  # noqa: PLW1509  no threads run here yet, and only libc is called
            )
        self._started = time.monotonic()

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def keep_alive(self) -> None:
        """Call often: notices an end, and starts again when the patience has run out."""
        if self._process is None or self._process.poll() is None:
            return
        now = time.monotonic()
        if self._not_before <= self._started:
            if now - self._started > STEADY_S:
                self._patience = RESTART_FIRST_S
            log.warning("process ended", name=self.name, code=self._process.returncode, restart_in_s=self._patience)
            self._not_before = now + self._patience
            self._patience = min(self._patience * 2, RESTART_MOST_S)
        elif now >= self._not_before:
            self.start()
            log.info("process started again", name=self.name, pid=self.pid)

    def terminate(self) -> None:
        if self.alive() and self._process is not None:
            self._process.terminate()

    def wait_or_kill(self, deadline: float) -> None:
        """Wait until the monotonic time `deadline`, then kill."""
        if self._process is None:
            return
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            log.warning("process did not end in time and is killed", name=self.name, pid=self.pid)
            self._process.kill()
            self._process.wait()
