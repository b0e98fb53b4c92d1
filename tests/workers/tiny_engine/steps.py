"""Reads the constants in every way that an engine does."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from tests.workers.tiny_engine import tuning
from tests.workers.tiny_engine.tuning import SIZES, TOKEN_THRESHOLD


def constants() -> dict[str, object]:
    return {
        "by_name": TOKEN_THRESHOLD,
        "by_module": tuning.TOKEN_THRESHOLD,
        "inside": tuning.threshold(),
        "doubled": tuning.DOUBLED,
        "sizes": SIZES,
    }


def constants_of_a_child() -> dict[str, object]:
    """As a process sees them that starts anew."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(theirs,))
    child.start()
    theirs.close()
    answer: dict[str, object] = ours.recv()
    child.join()
    return answer


def _send(pipe: Connection) -> None:
    pipe.send(constants())
