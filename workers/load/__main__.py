"""`python -m workers.load SPEC.json RESULT.json`: one run of a load spec.

Tells each phase as a line of JSON on standard output. Ends with 0 when the result was written, however many
requests failed; with 3 and the reason on standard error when the fault is ours. A defect ends with 1 and a traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import httpx
from pydantic import ValidationError

from workers.load.own_process import OWN_FAULT, allow_sockets, event_loop, tell
from workers.load.raw_streams import STREAMS_FILE, StreamsWriter
from workers.load.refusal import LoadRefused
from workers.load.run import LoadRun
from workers.load.spec import LoadProgress, LoadResult, LoadSpec


def write(result: LoadResult, path: Path) -> None:
    """The file is there completely or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(result.model_dump_json())
    unfinished.replace(path)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m workers.load SPEC.json RESULT.json\n")
        return OWN_FAULT
    allow_sockets()
    try:
        spec = LoadSpec.model_validate_json(Path(arguments[0]).read_bytes())
        result_file = Path(arguments[1])
        with contextlib.ExitStack() as stack:
            streams = None
            if spec.workload.keep_streams:
                streams = stack.enter_context(StreamsWriter(result_file.with_name(STREAMS_FILE)))
            runner = stack.enter_context(asyncio.Runner(loop_factory=event_loop()))
            result = runner.run(LoadRun(spec, tell, streams, result_file.parent).run())
        write(result, result_file)
        tell(LoadProgress(phase="done"))
    except (OSError, ValidationError, LoadRefused, httpx.UnsupportedProtocol) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return OWN_FAULT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
