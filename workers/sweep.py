"""Clean up after workers that died without their supervisors: at start, before a device is used again."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from workers.attempt_files import AttemptFiles
from workers.marked_processes import end_all, marked

LIMIT_S = 10.0


def sweep(attempts_root: Path, uid: str) -> set[int]:
    """End every process of the attempt; returns the pids that survived SIGKILL, empty as a rule.

    The runner itself carries no mark and stays.
    """
    files = AttemptFiles(attempts_root, uid)
    runner = files.runner()
    kept = {runner.pid} if runner is not None and runner.is_running else set()
    return end_all(lambda: marked(files.root_text, uid).keys() - kept, LIMIT_S)


def sweep_all(attempts_root: Path, keep: Collection[str] = ()) -> dict[str, set[int]]:
    """Sweep every attempt under the folder whose runner has ended, except those in `keep`.

    Returns the attempts that had processes left, with the pids that survived.
    """
    uids = set(marked(str(attempts_root.resolve())).values()) - set(keep)
    abandoned = sorted(uid for uid in uids if not _runs(attempts_root, uid))
    return {uid: sweep(attempts_root, uid) for uid in abandoned}


def _runs(attempts_root: Path, uid: str) -> bool:
    runner = AttemptFiles(attempts_root, uid).runner()
    return runner is not None and runner.is_running
