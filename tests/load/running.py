"""Runs the load process in the tests."""

from __future__ import annotations

import os
import time
from pathlib import Path

from autotune.domain.workload import LoadLevel, Workload
from workers.load.process import LoadProcess
from workers.load.spec import LoadProgress, LoadResult, LoadSpec

ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


def spec_of(
    url: str,
    *levels: LoadLevel | tuple[int, int],
    output: int = 20,
    prompt: int = 32,
    warm_up: int = 2,
    timeout_s: float = 30,
) -> LoadSpec:
    """Levels as (concurrency, requests) where nothing else is of interest."""
    workload = Workload(
        prompt_tokens=prompt,
        output_tokens=output,
        levels=tuple(
            level if isinstance(level, LoadLevel) else LoadLevel(concurrency=level[0], requests=level[1])
            for level in levels
        ),
        warmup_requests=warm_up,
        request_timeout_s=timeout_s,
    )
    return LoadSpec(base_url=url, model="mock", workload=workload, seed=11)


def ended(process: LoadProcess) -> list[LoadProgress]:
    """Every phase seen until the end."""
    seen: list[LoadProgress] = []
    end = time.monotonic() + 60
    while True:
        over = process.ended
        progress = process.poll()
        if not seen or seen[-1] != progress:
            seen.append(progress)
        if over:
            return seen
        assert time.monotonic() < end
        time.sleep(0.01)


def run(spec: LoadSpec, folder: Path) -> LoadResult:
    process = LoadProcess.start(spec, folder, ENV)
    try:
        ended(process)
        return process.result()
    finally:
        process.stop()
