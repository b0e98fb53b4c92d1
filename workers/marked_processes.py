"""Find and end the processes of an attempt, whatever became of their parents. Standard library only.

Four marks tell that a process belongs to an attempt:

* its start environment holds `AUTOTUNE_ATTEMPT=<uid>` and `AUTOTUNE_ATTEMPTS_ROOT=<folder>`;
* it has no terminal and its working directory lies inside the attempt's folder. Programs that write their
  title over their environment (vLLM's engine processes do) lose the first mark and keep this one, and a
  person who looks into the folder has a terminal;
* its limit on file locks is a number drawn from the attempt's name. The kernel has not enforced this limit since
  Linux 2.4.25, every child inherits it, and no program has a reason to touch it: a process that took another
  environment and another folder still has it;
* it is in the attempt's control group, on hosts that grant one (`workers.attempt_cgroup`).

All survive `setsid`, double forks and the death of every ancestor.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from pathlib import Path
from typing import NamedTuple

from workers.attempt_cgroup import AttemptCgroup, find_cgroup, make_cgroup, names_in

ATTEMPT_VARIABLE = "AUTOTUNE_ATTEMPT"
ROOT_VARIABLE = "AUTOTUNE_ATTEMPTS_ROOT"

_RLIMIT_LOCKS = 10  # asm-generic/resource.h; the module `resource` has no name for it
_NUMBER_BASE = 0x5AD7 << 44  # nobody sets such a limit by chance
_PROC = Path("/proc")
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)  # ended meanwhile, or another user's


class ProcessStat(NamedTuple):
    """The part of /proc/<pid>/stat that identifies a process; `started` in clock ticks since boot."""

    state: str
    parent: int
    terminal: int
    started: int


def process_stat(pid: int) -> ProcessStat | None:
    """None when there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (*_GONE, OSError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold blanks and brackets
    return ProcessStat(state=fields[0], parent=int(fields[1]), terminal=int(fields[4]), started=int(fields[19]))


def is_running(pid: int, started: int) -> bool:
    """Whether this very process still runs: a later owner of the number has another start time."""
    stat = process_stat(pid)
    return stat is not None and stat.state not in "ZX" and stat.started == started


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _number(root: str, uid: str) -> int:
    """The third mark: 44 bits of the attempt's name."""
    name = f"{root}/{uid}".encode()
    return _NUMBER_BASE | (zlib.crc32(name) << 12) | (zlib.adler32(name) & 0xFFF)


def mark_descendants(root: str, uid: str) -> None:
    """Put the third mark on this process, and so on all that it starts from now on.

    Nothing happens where it may not: under a stricter limit, without the right to lift it.
    """
    number = _number(root, uid)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(_RLIMIT_LOCKS, (number, number))


def cgroup_of(root: str, uid: str, *, make: bool = False) -> AttemptCgroup | None:
    """The attempt's control group, the fourth mark; None where there is none, or can be none."""
    name = f"{_number(root, uid):x}"  # short, and safe as the name of a folder
    return make_cgroup(name) if make else find_cgroup(name)


def _number_named(name: str) -> int:
    """-1 for a group that somebody else called as we do."""
    try:
        return int(name, 16)
    except ValueError:
        return -1


def _numbers(root: str, uid: str | None) -> dict[int, str]:
    """What the third mark would be, and the name of the fourth, for one attempt or all that have a folder."""
    if uid is not None:
        return {_number(root, uid): uid}
    try:
        return {_number(root, entry.name): entry.name for entry in Path(root).iterdir()}
    except FileNotFoundError:
        return {}


def _lock_limit(pid: int) -> int:
    try:
        return resource.prlimit(pid, _RLIMIT_LOCKS)[0]
    except (*_GONE, OSError):
        return resource.RLIM_INFINITY


def _attempt_of(pid: int, root: str, numbers: Mapping[int, str]) -> str | None:
    """The uid of the attempt under `root` that the process belongs to; None for any other process."""
    if (named := numbers.get(_lock_limit(pid))) is not None:
        return named
    process = _PROC / str(pid)
    try:
        for name in names_in((process / "cgroup").read_text("utf-8", "replace")):
            if (named := numbers.get(_number_named(name))) is not None:
                return named
        entries = (process / "environ").read_bytes().split(b"\0")
        if f"{ROOT_VARIABLE}={root}".encode() in entries:
            mark = f"{ATTEMPT_VARIABLE}=".encode()
            return next((e[len(mark) :].decode("utf-8", "replace") for e in entries if e.startswith(mark)), None)
        folder = str((process / "cwd").readlink()).removesuffix(" (deleted)")
    except (*_GONE, OSError):
        return None
    stat = process_stat(pid)
    if stat is None or stat.terminal != 0 or not folder.startswith(f"{root}/"):
        return None
    return folder[len(root) + 1 :].split("/")[0]


def marked(root: str, uid: str | None = None) -> dict[int, str]:
    """Living processes of one attempt, or of every attempt under `root`: pid to uid."""
    found = {}
    numbers = _numbers(root, uid)
    for pid in _pids():
        stat = process_stat(pid)
        if stat is None or stat.state in "ZX":
            continue
        owner = _attempt_of(pid, root, numbers)
        if owner is not None and uid in (None, owner):
            found[pid] = owner
    return found


def descendants(ancestor: int) -> set[int]:
    """All living processes below one, by parent."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        stat = process_stat(pid)
        if stat is not None and stat.state not in "ZX":
            children.setdefault(stat.parent, []).append(pid)
    found: set[int] = set()
    edge = [ancestor]
    while edge:
        below = children.get(edge.pop(), [])
        found.update(below)
        edge += below
    return found


def send(pids: Collection[int], number: signal.Signals) -> None:
    """Signal each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(find: Callable[[], Set[int]], limit_s: float, wait: Callable[[float], None] = time.sleep) -> set[int]:
    """SIGKILL what `find` finds until it finds nothing; returns what is left when `limit_s` is over.

    It asks again after every round, since a dying tree may still fork. A process that sleeps
    uninterruptibly in a driver stays, and is returned.
    """
    deadline = time.monotonic() + limit_s
    while left := set(find()):
        send(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        wait(0.02)
    return set()


def end_marked(root: str, uid: str, keep: Set[int], limit_s: float) -> set[int]:
    """SIGKILL every process of the attempt, except those in `keep`; returns what is left when `limit_s` is over."""
    group = cgroup_of(root, uid)
    if group is not None:
        group.kill()
    left = end_all(lambda: marked(root, uid).keys() - keep, limit_s)
    if group is not None:
        group.remove()
    return left
