"""Make sure that nothing of an attempt is left once its runner is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from workers.marked_processes import end_all, marked

SUPERVISOR_S = 10.0  # a supervisor ends its servers within 7 s of its runner's death
KILL_S = 5.0  # a process that survives SIGKILL for this long hangs in a driver


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether the condition came true in time; asks every 20 ms."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def end_attempt(root: str, uid: str) -> list[int]:
    """Wait for the supervisor to end the attempt's servers, then end what it could not; gives the pids left.

    `root` is the folder of all attempts on this host, as its processes are marked with it. Takes at most 15 s.
    """

    def left() -> set[int]:
        return marked(root, uid).keys() - {os.getpid()}

    if wait_until(lambda: not left(), SUPERVISOR_S):
        return []
    return sorted(end_all(left, KILL_S))
