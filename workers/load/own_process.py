"""What each process of a load sets up for itself, and how it speaks to the one that started it."""

from __future__ import annotations

import asyncio
import importlib
import resource
import sys
from collections.abc import Callable

from workers.load.spec import LoadProgress, LoadTally

OWN_FAULT = 3
SOCKETS = 2048  # the usual limit of 1024 open files is less than one level may have streams


def event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed; None stands for asyncio's own."""
    try:
        make: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return make


def allow_sockets() -> None:
    """Raise the limit on open files where this host lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < SOCKETS <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOCKETS, hard))


def tell(progress: LoadProgress | LoadTally) -> None:
    sys.stdout.write(progress.model_dump_json(exclude_none=True) + "\n")
    sys.stdout.flush()
