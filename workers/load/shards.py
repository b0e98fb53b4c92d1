"""A level that several processes send: each has its part of the streams and requests, and all begin at one moment.

Prompts depend on their level and number alone, so that they are the same whatever the processes. The most in flight
is divided among them: one that has none free does not borrow from another.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from autotune.domain.measurement import RequestSample
from autotune.domain.workload import LoadLevel
from workers.load.refusal import ShardFailed
from workers.load.spec import HostFacts, LoadProgress, LoadSpec, LoadTally, ShardResult, ShardSpec

LEAD_NS = 100_000_000  # from the word to the first request: for every process to hear it


class Shards:
    """One level over several processes. `streams_folder`: where each keeps its streams; None keeps none."""

    def __init__(
        self,
        spec: LoadSpec,
        level: LoadLevel,
        processes: int,
        continuous: bool,
        took_s: Sequence[float],
        streams_folder: Path | None,
    ) -> None:
        self._level = level
        self._tallies: dict[int, LoadTally] = {}
        self._specs = [
            ShardSpec(
                load=spec,
                level=level,
                number=number,
                of=processes,
                continuous=continuous,
                took_s=tuple(took_s),
                streams_file=None
                if streams_folder is None
                else str(streams_folder / f"streams.{level.name}.{number}.gz"),
            )
            for number in range(processes)
        ]

    async def run(self, tell: Callable[[LoadTally], None]) -> tuple[tuple[RequestSample, ...], list[HostFacts]]:
        """All samples in the order of their index, and how each process fared.

        Raises ShardFailed as soon as one of them ends without its result; the others are ended then.
        """
        with tempfile.TemporaryDirectory(prefix="autotune-load-") as folder:
            results = [Path(folder) / f"{spec.number}.result" for spec in self._specs]
            processes = [
                await self._start(spec, Path(folder), result) for spec, result in zip(self._specs, results, strict=True)
            ]
            try:
                await asyncio.gather(*(self._ready(process) for process in processes))
                start_ns = time.monotonic_ns() + LEAD_NS
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.write(b"%d\n" % start_ns)
                await asyncio.gather(*(self._follow(n, process, tell) for n, process in enumerate(processes)))
                found = [_read(result) for result in results]
            finally:
                for process in processes:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        samples = sorted((sample for one in found for sample in one.samples), key=lambda sample: sample.index)
        return tuple(samples), [one.host for one in found]

    async def _start(self, spec: ShardSpec, folder: Path, result: Path) -> Process:
        told = folder / f"{spec.number}.json"
        told.write_text(spec.model_dump_json())
        argv = [sys.executable, "-P", "-m", "workers.load.shard", str(told), str(result)]
        return await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE)

    async def _ready(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            with contextlib.suppress(ValidationError):
                LoadProgress.model_validate_json(line)
                return
        await self._ended(process)
        raise ShardFailed(f"{self._level.name}: a process of the level ended before its first request")

    async def _follow(self, number: int, process: Process, tell: Callable[[LoadTally], None]) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            with contextlib.suppress(ValidationError):
                self._tallies[number] = LoadTally.model_validate_json(line)
                tell(self._tally())
        await self._ended(process)

    async def _ended(self, process: Process) -> None:
        code = await process.wait()
        if code != 0:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            raise ShardFailed(f"{self._level.name}: a process of the level {how}")

    def _tally(self) -> LoadTally:
        parts = self._tallies.values()
        idle_s = [part.idle_s for part in parts if part.idle_s is not None]
        return LoadTally(
            ended=sum(part.ended for part in parts),
            failed=sum(part.failed for part in parts),
            error=next((part.error for part in parts if part.error is not None), None),
            idle_s=min(idle_s, default=None),
        )


def _read(result: Path) -> ShardResult:
    try:
        return ShardResult.model_validate_json(result.read_bytes())
    except (OSError, ValidationError) as error:
        raise ShardFailed(f"a process of the level left no readable result: {error}") from error
