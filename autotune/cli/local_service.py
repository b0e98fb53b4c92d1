"""The server on this machine: become it, or run it as a child."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from autotune.cli.choices import Executor
from autotune.errors import Conflict, InvalidRequest, Problem, Unavailable

START_S = 180.0  # a local Ray takes up to a minute on a busy machine
STOP_S = 30.0
_POLL_S = 0.1


def become_server(data: Path | None, host: str, port: int, executor: Executor, slots: int) -> None:
    """Replace this process with the server; signals go straight to it."""
    place = [] if data is None else ["--data", str(data)]
    argv = [sys.executable, "-m", "api.up", *place, "--host", host, "--port", str(port)]
    argv += ["--executor", executor, "--slots", str(slots)]
    os.execv(sys.executable, argv)  # noqa: S606  # no shell is what is wanted


class LocalService:
    """A server of our own on a free port, as a context manager; it ends with the context."""

    def __init__(self, data: Path, log: Path, executor: str, slots: int) -> None:
        self._ready = data / "run" / "up.json"
        self._log = log
        self._argv = [sys.executable, "-m", "api.up", "--data", str(data), "--host", "127.0.0.1", "--port", "0"]
        self._argv += ["--executor", executor, "--slots", str(slots)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalService:
        with self._log.open("wb") as log:
            # In a session of its own: Ctrl-C reaches us alone, and we end it in order.
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self) -> str:
        """Where it answers, once it does. Raises Unavailable with the end of its log."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            self.check()
            try:
                return str(json.loads(self._ready.read_text(encoding="utf-8"))["url"])
            except (FileNotFoundError, ValueError, KeyError):
                time.sleep(_POLL_S)
        raise Unavailable(f"the server did not get ready within {START_S:.0f} s; see {self._log}")

    def check(self) -> None:
        """Raises Unavailable when it has ended."""
        process = self._process
        if process is None or process.poll() is not None:
            code = "" if process is None else f" with exit code {process.returncode}"
            tail = "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
            raise Unavailable(f"the server ended{code}; the end of {self._log}:\n{tail}")

    def stop(self) -> None:
        """End it and wait, for at most STOP_S; then end its whole session."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(STOP_S)
        self._process = None


def remove_old_data(data: Path) -> None:
    """Forget what an earlier server kept in this folder.

    Raises InvalidRequest for a folder that holds something else, Conflict when a server still uses it.
    """
    if not data.exists():
        return
    if any(data.iterdir()) and not (data / "run").is_dir():
        message = f"{data} holds something else than an earlier run's data"
        raise InvalidRequest(message, [Problem("out", "holds foreign files", "choose another folder", file=str(data))])
    lock = data / "run" / "up.lock"
    if lock.exists():
        with lock.open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Conflict(f"a server still uses {data}; end it first") from error
    shutil.rmtree(data)
