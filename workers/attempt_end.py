"""Make sure that nothing of an attempt is left once its runner is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from workers.attempt_files import AttemptFiles
from workers.container_end import may_have_containers
from workers.marked_processes import cgroup_of, marked
from workers.sweep import LIMIT_S as SWEEP_S
from workers.sweep import sweep

SUPERVISOR_S = 10.0  # a supervisor ends its servers within 7 s of its runner's death
LIMIT_S = SUPERVISOR_S + SWEEP_S


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Whether the condition came true in time; asks every 20 ms."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def end_attempt(attempts_root: Path, uid: str) -> list[int]:
    """Wait for the supervisor to end the attempt's servers, then end what it could not; gives the pids left.

    Takes at most `LIMIT_S`.
    """
    files = AttemptFiles(attempts_root, uid)
    over = wait_until(lambda: not marked(files.root_text, uid), SUPERVISOR_S)
    if over and not may_have_containers(files.folder):
        if (group := cgroup_of(files.root_text, uid)) is not None:  # whoever made it was killed
            group.remove()
        return []
    return sorted(sweep(attempts_root, uid))
