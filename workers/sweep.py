"""Clean up after workers that died without their supervisors: at start, before a device is used again."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from workers.attempt_files import AttemptFiles
from workers.container_end import end_containers, noted
from workers.marked_processes import end_marked, marked

LIMIT_S = 10.0


def sweep(attempts_root: Path, uid: str) -> set[int]:
    """End every process and container of the attempt; returns the pids that survived SIGKILL, empty as a rule.

    The runner itself carries no mark and stays. A container that cannot be removed stays noted for the next sweep.
    """
    files = AttemptFiles(attempts_root, uid)
    runner = files.runner()
    kept = {runner.pid} if runner is not None and runner.is_running else set()
    left = end_marked(files.root_text, uid, kept, LIMIT_S)
    end_containers(files.folder)
    return left


def sweep_all(attempts_root: Path, keep: Collection[str] = ()) -> dict[str, set[int]]:
    """Sweep every attempt under the folder whose runner has ended, except those in `keep`.

    Returns the attempts that had processes or containers left, with the pids that survived.
    """
    uids = {*marked(str(attempts_root.resolve())).values(), *noted(attempts_root)} - set(keep)
    abandoned = sorted(uid for uid in uids if not _runs(attempts_root, uid))
    return {uid: sweep(attempts_root, uid) for uid in abandoned}


def _runs(attempts_root: Path, uid: str) -> bool:
    runner = AttemptFiles(attempts_root, uid).runner()
    return runner is not None and runner.is_running
