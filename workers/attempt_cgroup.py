"""A control group for the servers of one attempt, where the host grants one: one write ends them all.

Standard library only. Version 2 with `cgroup.kill` (Linux 5.14 and newer) and the right to make groups below our own
are needed: root has it, a user has it under systemd's delegation, a container as a rule has not. Without a group the
marks of `workers.marked_processes` do the work; with one, nothing can fork faster than it is killed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

PREFIX = "autotune-"
_PROC = Path("/proc")
_MEMBERS = "cgroup.procs"
_KILL = "cgroup.kill"


class AttemptCgroup(NamedTuple):
    """One group. No method raises: the kernel may refuse, and the marks are there too."""

    folder: Path

    def join(self) -> None:
        """This process, and so all that it starts from now on."""
        self._write(_MEMBERS, str(os.getpid()))

    def kill(self) -> None:
        """SIGKILL for everything in it, also in groups that a server made below."""
        self._write(_KILL, "1")

    def remove(self) -> None:
        """Nothing happens while something lives in it."""
        with contextlib.suppress(OSError):
            for folder, _, _ in os.walk(self.folder, topdown=False):
                Path(folder).rmdir()

    def _write(self, name: str, text: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / name).write_text(text)


def make_cgroup(name: str, proc: Path = _PROC) -> AttemptCgroup | None:
    """A group of that name below the one of this process; None where there can be none."""
    below = own_folder(proc)
    if below is None:
        return None
    group = AttemptCgroup(below / f"{PREFIX}{name}")
    try:
        group.folder.mkdir(exist_ok=True)
    except OSError:
        return None
    if not (group.folder / _KILL).exists():
        group.remove()
        return None
    return group


def find_cgroup(name: str, proc: Path = _PROC) -> AttemptCgroup | None:
    """The group that `make_cgroup` made for another process of the same group as ours; None when it is gone."""
    below = own_folder(proc)
    folder = None if below is None else below / f"{PREFIX}{name}"
    return AttemptCgroup(folder) if folder is not None and folder.is_dir() else None


def own_folder(proc: Path = _PROC) -> Path | None:
    """Where the kernel shows the group of this process; None without version 2."""
    try:
        groups = (proc / "self" / "cgroup").read_text().splitlines()
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::") for line in groups if line.startswith("0::")), None)
    if own is None or ".." in own:  # outside of what a container sees
        return None
    for mount in mounts:
        words = mount.split()  # proc(5): root and mount point are the 4th and 5th word, the type follows the dash
        if "-" in words and words[words.index("-") + 1] == "cgroup2":
            root, point = words[3].rstrip("/"), words[4]
            if own == root or own.startswith(f"{root}/"):
                return Path(point) / own[len(root) :].strip("/")
    return None


def names_in(groups: str) -> list[str]:
    """The names of our groups in the text of a /proc/<pid>/cgroup, outermost first."""
    lines = [line for line in groups.splitlines() if line.startswith("0::")]
    return [part.removeprefix(PREFIX) for line in lines for part in line.split("/") if part.startswith(PREFIX)]
