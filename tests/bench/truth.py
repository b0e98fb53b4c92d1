"""Builds and runs the ground truth of the load generator's benchmark, `truth_server.c`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

SOURCE = Path(__file__).with_name("truth_server.c")
TTFT_MS = 200.0


class Truth(NamedTuple):
    """One request as the server knows it; times in ns on the monotonic clock."""

    received: int
    first: int
    last: int
    tokens: int
    latest: int

    @property
    def ttft_ms(self) -> float:
        return (self.first - self.received) / 1e6

    @property
    def tpot_ms(self) -> float:
        return (self.last - self.first) / (self.tokens - 1) / 1e6


class TruthServer(NamedTuple):
    """A running server. `real_time`: whether it may go before all other processes."""

    url: str
    real_time: bool

    def truths(self, tokens: int) -> list[Truth]:
        """Requests of so many tokens that ended since the last call, in the order of their arrival."""
        text = httpx.get(f"{self.url}/truth", trust_env=False).text
        found = [Truth(*map(int, line.split())) for line in text.splitlines()]
        return [truth for truth in found if truth.tokens == tokens]


@contextmanager
def built() -> Iterator[Path]:
    """The compiled program; ends this one with a plain word where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.stderr.write("the ground truth is a C program: install a C compiler (cc) and run this again\n")
        raise SystemExit(2)
    with tempfile.TemporaryDirectory(prefix="autotune-truth-") as folder:
        program = Path(folder) / "truth_server"
        subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
        yield program


@contextmanager
def serving(program: Path, interval_ms: float, usage: str = "last", *, role: bool = False) -> Iterator[TruthServer]:
    """`usage`: `none`, `last` or `running`; `role`: an event without text comes with the head."""
    words = [str(round(TTFT_MS * 1000)), str(round(interval_ms * 1000)), usage, str(int(role))]
    process = subprocess.Popen([str(program), *words], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port, real_time = process.stdout.readline().split()
        yield TruthServer(f"http://127.0.0.1:{port}", real_time == "1")
    finally:
        process.kill()
        process.wait()
