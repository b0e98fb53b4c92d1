"""The process: parse, start the engine, serve until told to stop.

Exit status: 2 for wrong arguments, 1 for a failed start or a death under load, 0 after SIGTERM or SIGINT.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvloop

from workers.simulator.boot import read_command
from workers.simulator.faults import ConfigRejected, DeviceOutOfMemory, NotStarted
from workers.simulator.http.connection import Connection
from workers.simulator.http.disaggregation import intake_of
from workers.simulator.http.engine import Engine
from workers.simulator.http.metrics import Metrics
from workers.simulator.http.pace import pace_of
from workers.simulator.http.routes import Routes
from workers.simulator.serving.batching import Batcher
from workers.simulator.serving.noise import launch_noise, launch_seed
from workers.simulator.start.booting import Boot, Booted
from workers.simulator.start.machine import ServerMachine
from workers.simulator.start.random_faults import freeze_after_steps

GRACE_S = 1.0  # streams get an error event at once; this is for clients that do not read it
BACKLOG = 2048
FILES = 65_535  # what vLLM asks for too; a connection takes two


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run one server; returns the exit status."""
    boot = read_command(argv, env, sys.stderr, own_process=True)
    try:
        listener = _bind(boot.host, boot.port)
    except OSError as error:
        boot.narrator.rejected(f"OSError: [Errno {error.errno}] {_words(error)}")
        return 1
    with listener:
        try:
            booted = boot.start(loaded_libraries(), ServerMachine(env))
        except ConfigRejected as error:
            boot.narrator.rejected(str(error))
            return 1
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


def _words(error: OSError) -> str:
    """The kernel's words, which Python writes in lower case for a failed bind."""
    return (error.strerror or str(error)).capitalize()


async def _serve(boot: Boot, booted: Booted, env: Mapping[str, str], listener: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    config = booted.cost.config
    batcher = Batcher(booted.cost, booted.memory, launch_noise(env, launch_seed(env, boot.port)))
    metrics = Metrics(booted.served_name, config.draft_tokens, booted.surface.family)
    engine = Engine(batcher, metrics, freeze_after_steps(env))
    pace = pace_of(env)
    routes = Routes(engine, intake_of(booted, engine, batcher), metrics, booted, pace)
    connections: set[Connection] = set()
    server = await loop.create_server(
        lambda: Connection(routes.handle, connections), sock=listener, backlog=BACKLOG, start_serving=False
    )
    work = asyncio.create_task(engine.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, engine.stop)
    _take_precedence()
    await server.start_serving()
    boot.narrator.listening(boot.host, boot.port)
    await asyncio.wait({work})
    server.close()
    await _part(connections)
    if pace is not None:
        pace.write()
    try:
        work.result()
    except DeviceOutOfMemory as error:
        booted.narrator.died(error)
        return 1
    return 0


def _take_precedence() -> None:
    """The simulated device is nobody else's: what this host does besides must not make it late, where that is allowed.

    Without the right to the real-time class tokens are late by whole ms now and then on a host whose cores are busy.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    gc.collect()
    gc.freeze()  # a full collection of what start-up left behind would hold every stream up
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


async def _part(connections: set[Connection]) -> None:
    """Let clients read what was written; whoever does not is cut off."""
    for connection in tuple(connections):
        connection.close_when_answered()
    if connections:
        await asyncio.wait([connection.closed for connection in connections], timeout=GRACE_S)
    for connection in tuple(connections):
        connection.abort()


def run() -> int:
    """Entry of `python -m workers.simulator`."""
    return main(sys.argv[1:], os.environ)
