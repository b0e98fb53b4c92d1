"""`python -m workers.load SPEC.json RESULT.json`: one run of a load spec.

Tells each phase as a line of JSON on standard output. Ends with 0 when the result was written, however many
requests failed; with 3 and the reason on standard error when the fault is ours. A defect ends with 1 and a traceback.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
from pydantic import ValidationError

from workers.load.prompts import PromptsExhausted
from workers.load.run import LoadRun, TooMuchToHold
from workers.load.spec import LoadProgress, LoadResult, LoadSpec, LoadTally

OWN_FAULT = 3
SOCKETS = 2048  # the usual limit of 1024 open files is less than one level may have streams


def event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed; None stands for asyncio's own."""
    try:
        make: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return make


def tell(progress: LoadProgress | LoadTally) -> None:
    sys.stdout.write(progress.model_dump_json(exclude_none=True) + "\n")
    sys.stdout.flush()


def write(result: LoadResult, path: Path) -> None:
    """The file is there completely or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(result.model_dump_json())
    unfinished.replace(path)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m workers.load SPEC.json RESULT.json\n")
        return OWN_FAULT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < SOCKETS <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOCKETS, hard))
    try:
        spec = LoadSpec.model_validate_json(Path(arguments[0]).read_bytes())
        with asyncio.Runner(loop_factory=event_loop()) as runner:
            result = runner.run(LoadRun(spec, tell).run())
        write(result, Path(arguments[1]))
        tell(LoadProgress(phase="done"))
    except (OSError, ValidationError, PromptsExhausted, TooMuchToHold, httpx.UnsupportedProtocol) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return OWN_FAULT
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
