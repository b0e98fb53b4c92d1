"""The worker's handle on a supervisor and the servers below it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping

from workers.attempt_files import AttemptFiles
from workers.environment import program_environment
from workers.marked_processes import end_marked, marked
from workers.role_command import RoleCommand
from workers.supervisor import KILL_S

_HANDSHAKE_S = 30.0  # a supervisor that has not started by then never will: fork and exec take 0.05 s


class SupervisorLost(Exception):
    """The supervisor itself ended or did not start; its servers are being ended."""


class ServerTree:
    """One attempt's servers. Not thread-safe; no method waits longer than it says."""

    def __init__(
        self, files: AttemptFiles, commands: Mapping[str, RoleCommand], secrets: Collection[str], stop_s: float
    ) -> None:
        self._files = files
        self._stop_s = stop_s
        self._buffer = b""
        self._reports_ended = False
        self._left: list[int] | None = None
        self.pids: dict[str, int] = {}
        self.exits: dict[str, int] = {}
        self.oom_kills: int | None = None  # by the kernel's counter, when the last server ended
        spec = {
            "uid": files.uid,
            "root": files.root_text,
            "folder": str(files.folder),
            "worker": os.getpid(),
            "stop_s": stop_s,
            "secrets": list(secrets),
            "roles": {name: {"argv": list(c.argv), "env": dict(c.env)} for name, c in commands.items()},
        }
        with (files.folder / "supervisor.log").open("ab") as errors:
            self._process = subprocess.Popen(
                # Without `site` the start costs 20 ms; the supervisor needs nothing but this package.
                [sys.executable, "-S", "-m", "workers.supervisor"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=files.folder,
                env=program_environment(files),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders = self._process.stdin
        self._reports = self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # reading its reports will tell
            self._orders.write(json.dumps(spec).encode() + b"\n")
            self._orders.flush()
        os.set_blocking(self._reports.fileno(), False)

    def wait_started(self, role_count: int, tick: Callable[[], None]) -> None:
        """Until every role was forked; calls `tick` about every 10 ms. Raises SupervisorLost."""
        deadline = time.monotonic() + _HANDSHAKE_S
        while len(self.pids) < role_count:
            if time.monotonic() > deadline:
                raise SupervisorLost(f"the supervisor did not start within {_HANDSHAKE_S:.0f} s")
            self.poll()
            tick()
            time.sleep(0.01)
        self._process.wait(_HANDSHAKE_S)  # the one that forked the supervisor off

    def poll(self) -> dict[str, int]:
        """Roles that have ended so far, with their exit codes. Never waits. Raises SupervisorLost."""
        self._read()
        if self._reports_ended and self._left is None:
            raise SupervisorLost(f"the supervisor ended: {self._last_error()}")
        return self.exits

    def stop(self) -> set[int]:
        """End everything and make sure of it; returns the pids that are still there, empty as a rule.

        Takes at most `stop_s` and some seconds. Works without a supervisor too.
        """
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._orders.write(b"stop\n")
            self._orders.flush()
        deadline = time.monotonic() + self._stop_s + KILL_S + 5.0
        while not self._reports_ended and time.monotonic() < deadline:
            self._read()
            time.sleep(0.01)
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        self._reports.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        root, ours = self._files.root_text, {os.getpid()}
        for _ in range(20):  # the supervisor needs a moment to exit after its last report
            if not marked(root, self._files.uid).keys() - ours:
                break
            time.sleep(0.01)
        return end_marked(root, self._files.uid, ours, KILL_S)

    def _read(self) -> None:
        while not self._reports_ended:
            try:
                data = os.read(self._reports.fileno(), 65536)
            except BlockingIOError:
                return
            if not data:
                self._reports_ended = True
                return
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                self._note(json.loads(line))

    def _note(self, report: dict[str, object]) -> None:
        match report:
            case {"event": "started", "role": str(role), "pid": int(pid)}:
                self.pids[role] = pid
            case {"event": "exited", "role": str(role), "code": int(code), "oom_kills": int(kills)}:
                self.exits[role], self.oom_kills = code, kills
            case {"event": "stopped", "left": list(left)}:
                self._left = left

    def _last_error(self) -> str:
        lines = (self._files.folder / "supervisor.log").read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "no word why"
