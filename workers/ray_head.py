"""Ray nodes of one machine as foreign processes: start, find again, stop. Never imports Ray.

A node is one session of processes (`ray start --block` leads it), so that exactly ours can be ended:
`ray stop` would end every Ray on the machine. Attempts that run on a node end with it; a node outlives the
process that started it, and `start` takes over the one that `run_dir` names while it still runs.

Ray listens on every interface, whatever address it is given: the token keeps strangers out, a firewall has
to keep them away.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from autotune.errors import Unavailable
from workers.attempt_end import wait_until
from workers.marked_processes import end_all, is_running, process_stat

START_TIMEOUT_S = 120.0  # 2 s on an idle machine, 36 s were seen on one with 30 processes per core
STOP_S = 3.0  # what remains after that is killed
KILL_S = 2.0
OBJECT_STORE_BYTES = 80_000_000  # the least that Ray takes well; jobs and outcomes are a few KB of JSON

_READY = "Ray runtime started."  # what `ray start` of the pinned version prints when its node is registered
_LOG_LINES = 5


class _NodeRecord(NamedTuple):
    """What `run_dir` keeps of a node; `started` in clock ticks since boot."""

    pid: int
    started: int
    address: str
    temp_dir: str
    resources: dict[str, float]


class RayNode:
    """One Ray node: the head of a cluster, or another node of it on the same machine.

    `resources` are Ray's custom ones. Files in `run_dir`: `<name>.json`, `<name>.log`.
    """

    def __init__(self, run_dir: Path, name: str, token_file: Path, resources: Mapping[str, float]) -> None:
        self._run_dir = run_dir.resolve()
        self._record_file = self._run_dir / f"{name}.json"
        self._log_file = self._run_dir / f"{name}.log"
        self._token_file = token_file.resolve()
        self._resources = dict(resources)
        self._record: _NodeRecord | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._session_is_ours = False

    @property
    def address(self) -> str:
        """`host:port` of the cluster, for a driver. Raises Unavailable before the start."""
        if self._record is None:
            raise Unavailable("the Ray node is not started")
        return self._record.address

    @property
    def driver_env(self) -> dict[str, str]:
        """What a process that connects to the cluster needs in its environment."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1",  # devices are chosen per launch, not by Ray
        }

    def alive(self) -> bool:
        if self._process is not None:
            self._process.poll()  # a child of ours that ended must not stay a zombie
        return self._record is not None and is_running(self._record.pid, self._record.started)

    def stop(self) -> None:
        """End every process of the node, within 5 s; nothing happens when there is none."""
        record = self._record or self._read_record()
        if record is None:
            return
        if is_running(record.pid, record.started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGTERM)
            wait_until(lambda: not self._members(record), STOP_S)
        left = end_all(lambda: self._members(record), KILL_S)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_S)
        if left:
            raise Unavailable(f"processes {sorted(left)} of the Ray node do not end")
        shutil.rmtree(Path(record.temp_dir).parent, ignore_errors=True)
        self._record_file.unlink(missing_ok=True)
        self._record = self._process = None
        self._session_is_ours = False

    def _take_over(self) -> bool:
        """Use the node that an earlier process left running; end a broken one, and one with other resources."""
        record = self._read_record()
        if record is None:
            return False
        whole = is_running(record.pid, record.started) and _listens(record.address)
        if whole and record.resources == self._resources:
            self._record = record
            return True
        self.stop()
        return False

    def _launch(self, arguments: list[str], address: str, timeout_s: float, stopping: threading.Event) -> None:
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Short, for a socket's path may have 107 characters. Ray opens its folder to everyone: ours is around it.
        temp_dir = Path(tempfile.mkdtemp(prefix="atr-", dir="/tmp")) / "r"
        command = [
            *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", *arguments),
            "--disable-usage-stats",
            "--num-cpus=1",  # attempts ask for none; Ray itself wants a worker for its own short tasks
            f"--resources={json.dumps(self._resources)}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--temp-dir={temp_dir}",
            "--log-style=record",
            "--log-color=false",
        ]
        with self._log_file.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
            )
        stat = process_stat(process.pid)  # our child: it is there, at least as a zombie
        assert stat is not None
        self._process = process
        self._record = _NodeRecord(process.pid, stat.started, address, str(temp_dir), self._resources)
        self._record_file.write_text(json.dumps(self._record._asdict()), encoding="utf-8")
        wait_until(lambda: self._is_ready() or not self.alive() or stopping.is_set(), timeout_s)
        if not stopping.is_set() and not (self.alive() and self._is_ready()):
            ended = "does not come up in time" if self.alive() else f"ended with code {process.returncode}"
            lines = self._log_file.read_text("utf-8", "replace").strip().splitlines()[-_LOG_LINES:]
            self.stop()
            raise Unavailable(f"the Ray node {ended}; see {self._log_file}: {' | '.join(lines)}")

    def _is_ready(self) -> bool:
        return _READY in self._log_file.read_text("utf-8", "replace")

    def _environment(self) -> dict[str, str]:
        """From nothing; workers inherit it."""
        kept = {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": "/"}
        return {
            **{name: os.environ.get(name, default) for name, default in kept.items()},
            **self.driver_env,
            "RAY_raylet_start_wait_time_s": f"{START_TIMEOUT_S:.0f}",
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # else a node with an attempt takes 30 s to stop
        }

    def _read_record(self) -> _NodeRecord | None:
        try:
            return _NodeRecord(**json.loads(self._record_file.read_bytes()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _members(self, record: _NodeRecord) -> set[int]:
        """The processes of the node's session. Supervisors of attempts have left it, and end by themselves.

        Without its leader a session's number alone is no proof: a process that names our token is. One is
        enough for all of them, since a session does not mix; some write their title over their environment.
        """
        leader = process_stat(record.pid)
        if leader is not None and leader.started != record.started:
            return set()  # the number has a new owner
        found = set()
        for pid in psutil.pids():
            with contextlib.suppress(OSError):
                stat = process_stat(pid)
                if os.getsid(pid) == record.pid and stat is not None and stat.state not in "ZX":
                    found.add(pid)
        self._session_is_ours = self._session_is_ours or leader is not None or any(map(self._names_token, found))
        return found if self._session_is_ours else set()

    def _names_token(self, pid: int) -> bool:
        token = f"RAY_AUTH_TOKEN_PATH={self._token_file}".encode()
        with contextlib.suppress(OSError):
            return token in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False


class RayHead(RayNode):
    """The head node of a cluster for this machine. `port` 0 means any free one."""

    def __init__(self, run_dir: Path, slots: int, port: int = 0, resources: Mapping[str, float] | None = None) -> None:
        super().__init__(run_dir, "ray-head", run_dir / "ray.token", {"slot": slots, **(resources or {})})
        self._port = port

    @property
    def token_file(self) -> Path:
        """The cluster's secret, readable by its owner only. It stays the same over restarts."""
        return self._token_file

    def start(self, stopping: threading.Event | None = None, timeout_s: float = START_TIMEOUT_S) -> str:
        """Returns the cluster's address when a driver can connect; earlier when `stopping` is set.

        Raises Unavailable with the reason when the node does not come up.
        """
        if self._take_over():
            return self.address
        self._write_token()
        port = _free_port(self._port)
        arguments = ["--head", f"--port={port}", "--include-dashboard=false", "--node-ip-address=127.0.0.1"]
        self._launch(arguments, f"127.0.0.1:{port}", timeout_s, stopping or threading.Event())
        return self.address

    def _write_token(self) -> None:
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(self._token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
        self._token_file.chmod(0o600)


def start_worker_node(
    head: RayHead, run_dir: Path, slots: int, host: str, timeout_s: float = START_TIMEOUT_S
) -> RayNode:
    """Another node of the head's cluster on this machine; it has the resource `host:<host>` beside its slots."""
    node = RayNode(run_dir, f"ray-{host}", head.token_file, {"slot": slots, f"host:{host}": 1})
    node._launch([f"--address={head.address}"], head.address, timeout_s, threading.Event())  # noqa: SLF001 - this module's own class
    return node


def _free_port(wanted: int) -> int:
    """`wanted`, or any for 0. Raises Unavailable when it is taken: Ray would try for a minute and not say so."""
    try:
        with socket.create_server(("", wanted)) as server:
            port: int = server.getsockname()[1]
    except OSError as error:
        raise Unavailable(f"Ray cannot listen on port {wanted}: {error.strerror}") from error
    return port


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0):
            return True
    except OSError:
        return False
