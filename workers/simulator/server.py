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

from workers.simulator.batching import Batcher
from workers.simulator.configure import configure
from workers.simulator.cost_model import CostModel
from workers.simulator.engine import Engine
from workers.simulator.faults import ConfigRejected, DeviceOutOfMemory, EngineFailed
from workers.simulator.flags import Flags, parse_flags
from workers.simulator.http_app import HttpApp
from workers.simulator.memory_model import MemoryModel
from workers.simulator.metrics import Metrics
from workers.simulator.noise import Noise, launch_seed
from workers.simulator.server_log import ServerLog
from workers.simulator.start_up import start_engine
from workers.simulator.system import load_system

GRACE_S = 1  # streams get an error event at once; this is for clients that do not read it
BACKLOG = 2048


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run one server; returns the exit status."""
    flags = parse_flags(argv)
    log = ServerLog()
    try:
        system = load_system(Path(flags.model_path))
    except (OSError, ValueError) as error:
        log.rejected(f"Invalid repository ID or local directory specified: '{flags.model_path}' ({error})")
        return 1
    try:
        listener = _bind(flags)
    except OSError as error:
        log.rejected(f"[Errno {error.errno}] cannot bind {flags.host}:{flags.port}: Address already in use")
        return 1
    with listener:
        try:
            config = configure(flags, env, loaded_libraries(), system)
            memory = MemoryModel(system, config)
            start_engine(flags, env, memory, log)
        except ConfigRejected as error:
            log.rejected(str(error))
            return 1
        except EngineFailed as error:
            log.engine_failed(error)
            return 1
        cost = CostModel(system, config)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(flags, env, cost, memory, listener, log))


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> set[str]:
    """Paths of the libraries in this process; a preload that failed is not among them."""
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if line.count("/")}


def _bind(flags: Flags) -> socket.socket:
    """Bound before the engine starts and not listening: until ready, connections are refused."""
    listener = socket.socket(socket.AF_INET6 if ":" in flags.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((flags.host, flags.port))
    except OSError:
        listener.close()
        raise
    return listener


class _Server(uvicorn.Server):
    """Leaves signals to us: a stopped server exits with 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def _serve(
    flags: Flags,
    env: Mapping[str, str],
    cost: CostModel,
    memory: MemoryModel,
    listener: socket.socket,
    log: ServerLog,
) -> int:
    system, config = cost.system, cost.config
    name = flags.served_model_name or system.model
    metrics = Metrics(name, config.draft_tokens)
    engine = Engine(Batcher(cost, memory, Noise(launch_seed(env, flags.port))), metrics)
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
    log.say(f"Starting vLLM server on http://{flags.host}:{flags.port}", "launcher.py:29", "APIServer")
    log.say("Application startup complete.", "on.py:62", "APIServer")
    await server.serve(sockets=[listener])
    stop()
    try:
        await work
    except DeviceOutOfMemory as error:
        log.engine_died(error)
        return 1
    return 0


def run() -> int:
    """Entry of `python -m workers.simulator`."""
    return main(sys.argv[1:], os.environ)
