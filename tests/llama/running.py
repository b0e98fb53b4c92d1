"""A real server process with the tiny model."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

ALIAS = "tiny"
DEADLINE_S = 60.0
ONE_THREAD = ("--threads", "1", "--poll", "0")  # spinning threads starve each other on a shared machine


@dataclass(frozen=True)
class Server:
    """A process that was started, and where it writes."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_ready(self) -> None:
        """Until /health answers 200. Raises AssertionError when the server ends or stays silent."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.text()
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"not ready: {self.text()}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    model: Path, folder: Path, *flags: str, port: int | None = None, memory_bytes: int | None = None
) -> Iterator[Server]:
    """A server that is ended with the block, whatever happened. Nothing waits for readiness here."""
    port = free_port() if port is None else port
    log = folder / f"server-{port}.log"
    argv: Sequence[str] = (
        *(sys.executable, "-m", "workers.engines.llama_server", "-m", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--alias", ALIAS, *ONE_THREAD, *flags),
    )
    env = {"PATH": os.defpath, "GGML_NO_BACKTRACE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
    try:
        if memory_bytes is not None:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        yield Server(process, port, log)
    finally:
        process.kill()
        process.wait()
