"""`python -m workers.load.shard SPEC.json RESULT.json`: one of the processes that send a level.

Prepares its part, says so on standard output, and waits for the moment to begin: a line on standard input, in ns of
the monotonic clock, which all processes of a host share. Should its parent go away, standard input ends, and so does
the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from pathlib import Path

import httpx

from workers.load.endpoint import client_of, requests_of
from workers.load.host_watch import HostWatch
from workers.load.level import LevelRunner, Part
from workers.load.own_process import OWN_FAULT, allow_sockets, event_loop, tell
from workers.load.raw_streams import StreamsWriter
from workers.load.refusal import LoadRefused
from workers.load.spec import LoadProgress, ShardResult, ShardSpec
from workers.load.tally import Tally
from workers.load.transport import RecordingTransport


async def run(spec: ShardSpec, begin: asyncio.Future[int], streams: StreamsWriter | None) -> ShardResult:
    """Raises LoadRefused, and OSError where this host has no more sockets."""
    transport = RecordingTransport(ca_file=spec.load.ca_file, kernel_stamps=spec.load.kernel_stamps)
    async with client_of(spec.load, transport) as client:
        watch = HostWatch()
        requests = requests_of(spec.load, client)
        requests.continuous = spec.continuous
        runner = LevelRunner(
            spec.load, requests, client, transport, Tally(tell, spec.load.workload.output_tokens), watch
        )
        part = Part(spec.number, spec.of)
        prepared = await runner.prepare(spec.level.name, spec.level, part=part, took_s=spec.took_s)
        tell(LoadProgress(phase="load", level=spec.level.name))
        kept = await runner.measure(prepared, await begin)
    if streams is not None:
        for one in kept:
            streams.add(one)
    samples = tuple(one.sample() for one in kept)
    return ShardResult(samples=samples, host=watch.facts(sum(one.completion_tokens or 0 for one in samples)))


async def listen(spec: ShardSpec, streams: StreamsWriter | None) -> ShardResult:
    """Hears when to begin."""
    loop = asyncio.get_running_loop()
    begin: asyncio.Future[int] = loop.create_future()

    def hear() -> None:
        line = sys.stdin.readline()
        if line.strip():
            loop.call_soon_threadsafe(begin.set_result, int(line))
            sys.stdin.read()
        os._exit(OWN_FAULT)  # the parent is gone, and nobody waits for the result

    threading.Thread(target=hear, daemon=True).start()
    return await run(spec, begin, streams)


def main(arguments: list[str]) -> int:
    spec = ShardSpec.model_validate_json(Path(arguments[0]).read_bytes())
    allow_sockets()
    try:
        with contextlib.ExitStack() as stack:
            streams = None
            if spec.streams_file is not None:
                streams = stack.enter_context(StreamsWriter(Path(spec.streams_file)))
            runner = stack.enter_context(asyncio.Runner(loop_factory=event_loop()))
            result = runner.run(listen(spec, streams))
        Path(arguments[1]).write_text(result.model_dump_json())
    except (OSError, LoadRefused, httpx.UnsupportedProtocol) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return OWN_FAULT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
