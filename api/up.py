"""`autotune up`: api, dispatcher and a local Ray on this machine, under one process that ends them all."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import structlog

from api.child_process import ChildProcess
from api.data_directory import DataDirectory, default_root
from api.logs import log_to_stderr
from autotune.errors import Unavailable
from workers.ray_head import RayHead
from workers.sweep import sweep_all

log = structlog.get_logger("up")

POLL_S = 0.1
API_START_S = 60.0
API_RETRY_S = 5.0
# Ten seconds in all: the children get most of it, Ray and the sweep the rest.
CHILDREN_STOP_S = 6.0


class AlreadyUp(Exception):
    """Another `autotune up` uses the data directory."""


def lock(data: DataDirectory) -> TextIO:
    """Hold the data directory for this process; the kernel lets go of it however we end."""
    handle = (data.run / "up.lock").open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        handle.seek(0)
        raise AlreadyUp(f"{data.root} is in use by another `autotune up` (pid {handle.read().strip()})") from error
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()
    return handle


class Service:
    """The processes of the control plane on this machine."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._data = DataDirectory(args.data).prepare()
        self._ray = RayHead(self._data.run, args.slots) if args.executor == "ray" else None
        self._children: list[ChildProcess] = []
        self._stopping = threading.Event()

    def stop_soon(self, *_: Any) -> None:
        self._stopping.set()

    def run(self) -> int:
        """Start everything, keep it alive, end everything. Gives the exit code."""
        with lock(self._data):
            self._sweep()
            (self._data.run / "up.json").unlink(missing_ok=True)
            try:
                return self._run()
            finally:
                self._stop()

    def _run(self) -> int:
        api = self._start_api()
        url = self._wait_for_api(api)
        if url is None:
            return 0 if self._stopping.is_set() else 1
        if not self._start_ray():
            return 0 if self._stopping.is_set() else 1
        self._start_dispatcher()
        self._announce(url)
        while not self._stopping.wait(POLL_S):
            if self._ray is not None and not self._ray.alive():
                log.warning("Ray ended and is started again")
                self._restart_with_ray()
            for child in self._children:
                child.keep_alive()
        return 0

    def _start_ray(self) -> bool:
        """False when it does not start, or when we are to stop first: a start takes up to two minutes."""
        if self._ray is None:
            return True
        try:
            self._ray.start(self._stopping)
        except Unavailable as error:
            log.error("Ray does not start", reason=error.message)
            return False
        return not self._stopping.is_set()

    def _restart_with_ray(self) -> None:
        """A driver outlives its cluster by a minute and is of no use meanwhile: it is replaced too."""
        dispatcher = next(child for child in self._children if child.name == "dispatcher")
        self._children.remove(dispatcher)
        dispatcher.terminate()
        dispatcher.wait_or_kill(time.monotonic() + CHILDREN_STOP_S)
        if self._ray is not None:
            self._ray.stop()
        self._sweep()
        if self._start_ray():
            self._start_dispatcher()
        else:
            self._stopping.set()

    def _sweep(self) -> None:
        """End servers whose runner is gone; attempts that still run are taken over by the dispatcher."""
        for uid, left in sweep_all(self._data.attempts).items():
            log.info("swept what an attempt left", attempt=uid, not_ended=sorted(left))

    def _child(self, name: str, argv: list[str], extra: dict[str, str]) -> ChildProcess:
        env = {**os.environ, **extra}
        child = ChildProcess(name, [sys.executable, "-m", *argv], env, self._data.logs / f"{name}.log")
        child.start()
        self._children.append(child)
        return child

    def _start_api(self) -> ChildProcess:
        (self._data.run / "api.json").unlink(missing_ok=True)
        extra = {
            "AUTOTUNE_DATA": str(self._data.root),
            "AUTOTUNE_HOST": self._args.host,
            "AUTOTUNE_PORT": str(self._args.port),
        }
        if self._args.database:
            extra["AUTOTUNE_DATABASE_URL"] = self._args.database
        return self._child("api", ["api.app"], extra)

    def _wait_for_api(self, api: ChildProcess) -> str | None:
        deadline = time.monotonic() + API_START_S
        # The api of a killed `up` keeps the port for the seconds that its requests take to end.
        give_up = time.monotonic() + API_RETRY_S
        ready = self._data.run / "api.json"
        while not self._stopping.wait(POLL_S) and time.monotonic() < deadline:
            if ready.exists():
                url = str(json.loads(ready.read_text())["url"])
                # A restarted api must be found where the first one was.
                api.remember({"AUTOTUNE_PORT": url.rsplit(":", 1)[1].strip("/")})
                return url
            if not api.alive() and time.monotonic() > give_up:
                tail = (self._data.logs / "api.log").read_text(errors="replace")[-2000:]
                log.error("the api does not start", log_tail=tail)
                return None
            api.keep_alive()
        if not self._stopping.is_set():
            log.error("the api did not get ready in time", limit_s=API_START_S)
        return None

    def _start_dispatcher(self) -> None:
        argv = ["api.dispatcher", "--data", str(self._data.root), "--executor", self._args.executor]
        argv += ["--slots", str(self._args.slots)]
        if self._args.database:
            argv += ["--database", self._args.database]
        extra: dict[str, str] = {}
        if self._ray is not None:
            argv += ["--ray-address", self._ray.address]
            extra = self._ray.driver_env
        self._child("dispatcher", argv, extra)

    def _announce(self, url: str) -> None:
        pids = {child.name: child.pid for child in self._children}
        state = {"url": url, "pid": os.getpid(), "pids": pids, "executor": self._args.executor}
        temporary = self._data.run / "up.json.tmp"
        temporary.write_text(json.dumps(state))
        temporary.replace(self._data.run / "up.json")
        sys.stdout.write(f"autotune is up: {url} (data in {self._data.root}; Ctrl-C ends it)\n")
        sys.stdout.flush()

    def _stop(self) -> None:
        deadline = time.monotonic() + CHILDREN_STOP_S
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.wait_or_kill(deadline)
        if self._ray is not None:
            self._ray.stop()
        self._sweep()
        (self._data.run / "up.json").unlink(missing_ok=True)
        log.info("autotune is down")


def main() -> None:
    parser = argparse.ArgumentParser(prog="autotune up", description=__doc__)
    parser.add_argument("--data", type=Path, default=default_root())
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--database", help="SQLAlchemy URL; default: SQLite in the data directory")
    parser.add_argument("--executor", choices=["ray", "local", "virtual"], default="ray")
    parser.add_argument("--slots", type=int, default=1, help="trials at a time on this host")
    args = parser.parse_args()
    if args.slots < 1:
        parser.error("--slots must be at least 1")
    log_to_stderr()
    service = Service(args)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, service.stop_soon)
    try:
        sys.exit(service.run())
    except AlreadyUp as error:
        sys.stderr.write(f"autotune: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
