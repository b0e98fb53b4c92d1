"""The detached process that owns the server processes of one attempt. Standard library only: it starts in 30 ms.

Run as `python -m workers.supervisor`. One JSON line on stdin says what to start:

    {"uid", "root", "folder", "worker", "stop_s", "secrets": [...], "roles": {"server": {"argv": [...], "env": {...}}}}

It forks itself away into a session of its own, so that nothing that ends its worker's process group, or the
worker's children, reaches it. As a child subreaper it inherits every orphan below it. It reports JSON lines
on stdout:

    {"event": "started", "role", "pid"}      {"event": "exited", "role", "code", "oom_kills"}
    {"event": "stopped", "left": [...]}

`code` is negative for a signal, `oom_kills` is by how much the kernel's counter of kills for memory rose since the
start. Each role runs in its own session, in the attempt's folder, with the given
environment and nothing else, and writes to `<role>.log`.

The line `stop`, the end of stdin (the worker died) and SIGTERM end the attempt: SIGTERM to every server's
process group, then, after `stop_s` (1 s when the worker died), SIGKILL to the attempt's control group where there
is one, to every descendant and to every process that carries the attempt's mark. `left` lists what even that could
not end.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Any

from workers.capped_log import CappedLog
from workers.container_end import end_containers
from workers.marked_processes import cgroup_of, descendants, end_all, mark_descendants, marked

ORPHANED_STOP_S = 1.0  # nobody waits for a result any more: the devices come first
AFTER_LEADERS_S = 1.0  # once the servers themselves have ended, what is left of them gets this long
KILL_S = 5.0  # a process that survives SIGKILL for this long hangs in a driver

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 256 * 1024


class _Role:
    """One server: its process, the reading end of its output, its log."""

    def __init__(self, name: str, pid: int, output: int, log: CappedLog) -> None:
        self.name = name
        self.pid = pid
        self.output = output
        self.log = log
        self.running = True

    def drain(self) -> bool:
        """Copy what has been written so far to the log; False at the end of the output."""
        while True:
            try:
                data = os.read(self.output, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.log.write(data)
            if len(data) < _CHUNK:  # a server that floods its log must not keep us from our other duties
                return True


class Supervisor:
    """Runs in the detached process until the attempt has ended."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._folder = Path(spec["folder"])
        self._roles: dict[int, _Role] = {}
        self._stop_s: float | None = None
        self._oom_kills = _kernel_oom_kills()
        self._cgroup = cgroup_of(spec["root"], spec["uid"], make=True)
        self._selector = selectors.DefaultSelector()
        wake_read, self._wake = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(self._wake, False)
        os.set_blocking(sys.stdin.fileno(), False)
        self._selector.register(wake_read, selectors.EVENT_READ)
        self._selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._ask_stop(self._spec["stop_s"]))

    def run(self) -> None:
        for name, role in self._spec["roles"].items():
            self._start(name, role["argv"], role["env"])
        while self._stop_s is None:
            self._pump(60.0)
        self._end(time.monotonic())
        for role in self._roles.values():
            role.drain()
            role.log.close()

    def _start(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        secrets = [secret.encode() for secret in self._spec["secrets"]]
        log = CappedLog(self._folder / f"{name}.log", secrets)
        output, server_end = os.pipe()
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            if self._cgroup is not None:
                self._cgroup.join()
            _become(argv, env, self._folder, server_end, supervisor)
        os.close(server_end)
        os.set_blocking(output, False)
        role = _Role(name, pid, output, log)
        self._roles[pid] = role
        self._selector.register(output, selectors.EVENT_READ, role)
        _report(event="started", role=name, pid=pid)

    def _ask_stop(self, stop_s: float) -> None:
        self._stop_s = stop_s if self._stop_s is None else min(stop_s, self._stop_s)

    def _pump(self, timeout_s: float) -> None:
        """Wait for output, for an ended child or for the worker, and deal with it."""
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, _Role):
                if not key.data.drain():
                    self._selector.unregister(key.fd)
                continue
            words = os.read(key.fd, _CHUNK)
            if key.fd == sys.stdin.fileno():
                if not words:
                    self._selector.unregister(key.fd)
                    self._ask_stop(min(ORPHANED_STOP_S, self._spec["stop_s"]))
                elif b"stop" in words:
                    self._ask_stop(self._spec["stop_s"])
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            role = self._roles.get(pid)
            if role is None:
                continue  # an orphan that we inherited
            role.running = False
            code = os.waitstatus_to_exitcode(status)
            role.drain()
            if self._stop_s is None and code < 0:
                role.log.write(f"\n[autotune] {role.name} was ended by {signal.Signals(-code).name}\n".encode())
            _report(event="exited", role=role.name, code=code, oom_kills=_kernel_oom_kills() - self._oom_kills)

    def _end(self, begun: float) -> None:
        for role in self._roles.values():
            _signal_group(role.pid, signal.SIGTERM)
        leaders_gone: float | None = None
        while self._left():
            now = time.monotonic()
            if leaders_gone is None and not any(role.running for role in self._roles.values()):
                leaders_gone = now
            assert self._stop_s is not None
            if now - begun > self._stop_s or (leaders_gone is not None and now - leaders_gone > AFTER_LEADERS_S):
                break
            self._pump(0.05)
        if self._cgroup is not None:
            self._cgroup.kill()
        left = end_all(self._left, KILL_S, self._pump)
        end_containers(self._folder, KILL_S)  # they are no descendants; the worker, or a sweep, asks again
        self._pump(0.0)
        if self._cgroup is not None:
            self._cgroup.remove()
        _report(event="stopped", left=sorted(left))

    def _left(self) -> set[int]:
        strangers = {os.getpid(), self._spec["worker"]}  # the worker may stand in the attempt's folder
        return descendants(os.getpid()) | (marked(self._spec["root"], self._spec["uid"]).keys() - strangers)


def _become(argv: list[str], env: dict[str, str], folder: Path, output: int, supervisor: int) -> None:
    """In the new child: turn into the server. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        # Python ignores these two, and ignored signals stay ignored across exec.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.chdir(folder)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:  # it died before the line above: nothing would tell us
            os._exit(127)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execvpe(argv[0], argv, env)  # noqa: S606  a list from the host's own template, never a shell
    except (OSError, ValueError) as error:
        os.write(output, f"[autotune] cannot start {argv[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _prctl(option: int, value: int) -> None:
    arguments = [ctypes.c_ulong(n) for n in (value, 0, 0, 0)]  # prctl is variadic: an int would be half an argument
    if ctypes.CDLL(None, use_errno=True).prctl(option, *arguments) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _signal_group(leader: int, number: signal.Signals) -> None:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return


def _kernel_oom_kills() -> int:
    """How often the kernel has killed for want of memory since boot, on the whole host or in any cgroup."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _report(**event: object) -> None:
    """One line to the worker; nothing happens when it is gone."""
    try:
        os.write(1, json.dumps(event).encode() + b"\n")
    except (BrokenPipeError, BlockingIOError):
        return


def _first_line() -> str:
    line = b""
    while not line.endswith(b"\n"):
        # One byte at a time: what follows the line belongs to the running supervisor.
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit("no specification on stdin")
        line += byte
    return line.decode()


def main() -> None:
    spec = json.loads(_first_line())
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    mark_descendants(spec["root"], spec["uid"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Supervisor(spec).run()


if __name__ == "__main__":
    main()
