"""The process: parse, start the engine, serve until told to stop.

Exit status: 2 for wrong arguments, 1 for a failed start or a death under load, 0 after SIGTERM or SIGINT.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import uvicorn
import uvloop

from workers.simulator.boot import read_command
from workers.simulator.faults import DeviceOutOfMemory
from workers.simulator.http.engine import Engine
from workers.simulator.http.http_app import HttpApp
from workers.simulator.http.metrics import Metrics
from workers.simulator.serving.batching import Batcher
from workers.simulator.serving.noise import Noise, launch_seed
from workers.simulator.start.booting import Boot, Booted, NotStarted

GRACE_S = 1  # streams get an error event at once; this is for clients that do not read it
BACKLOG = 2048


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run one server; returns the exit status."""
    boot = read_command(argv, env, sys.stderr)
    try:
        listener = _bind(boot.host, boot.port)
    except OSError as error:
        boot.narrator.rejected(f"[Errno {error.errno}] cannot bind {boot.host}:{boot.port}: Address already in use")
        return 1
    with listener:
        try:
            booted = boot.start(loaded_libraries())
        except NotStarted as error:
            return error.code
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(boot, booted, env, listener))


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> set[str]:
    """Paths of the libraries in this process; a preload that failed is not among them."""
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if line.count("/")}


def _bind(host: str, port: int) -> socket.socket:
    """Bound before the engine starts and not listening: until ready, connections are refused."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


class _Server(uvicorn.Server):
    """Leaves signals to us: a stopped server exits with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def _serve(boot: Boot, booted: Booted, env: Mapping[str, str], listener: socket.socket) -> int:
    system, config = booted.cost.system, booted.cost.config
    name = booted.served_name
    metrics = Metrics(name, config.draft_tokens)
    engine = Engine(Batcher(booted.cost, booted.memory, Noise(launch_seed(env, boot.port))), metrics)
    app = HttpApp(engine, metrics, name, config.max_model_len, system.stack.engine_version)
    options = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(options)
    work = asyncio.create_task(engine.run())

    def stop() -> None:
        engine.stop()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    work.add_done_callback(lambda _: stop())
    boot.narrator.listening(boot.host, boot.port)
    await server.serve(sockets=[listener])
    stop()
    try:
        await work
    except DeviceOutOfMemory as error:
        boot.narrator.died(error)
        return 1
    return 0


def run() -> int:
    """Entry of `python -m workers.simulator`."""
    return main(sys.argv[1:], os.environ)
