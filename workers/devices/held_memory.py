"""Who holds how much memory of the simulated devices of this host: one small file per device.

Memory belongs to a process while it lives, as on a real device: a server that was left behind makes the next start
on its devices fail. Entries of dead processes are dropped by whoever looks next.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter

from autotune.domain.value import Value

DEVICES_DIR = "AUTOTUNE_SIM_DEVICES_DIR"  # names the folder to simulated servers

_DEAD = "ZX"  # a zombie's memory has been given back


class Holding(Value):
    """Memory of one device in one process; `started` (clock ticks since boot) tells it from a later one."""

    pid: int
    started: int
    gib: float

    @property
    def alive(self) -> bool:
        return _started(self.pid) == self.started


_HOLDINGS = TypeAdapter(tuple[Holding, ...])


def hold(folder: Path, devices: Iterable[int], gib: float, pid: int | None = None) -> float:
    """Book so much memory of each device for a process, this one by default; what it had booked there is replaced.

    Returns the most that other living processes hold of one of the devices, in GiB. Safe against starts at the same
    time. Raises OSError when the folder can't be written, ProcessLookupError for a process that has ended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = os.getpid() if pid is None else pid
    started = _started(number)
    if started is None:
        raise ProcessLookupError(f"no process {number}")
    mine = Holding(pid=number, started=started, gib=gib)
    return max((_book(_file(folder, device), mine) for device in devices), default=0.0)


def held_gib(folder: Path, device: int) -> float:
    """What living processes hold of the device, in GiB; nothing is changed."""
    return sum(holding.gib for holding in _read(_file(folder, device)) if holding.alive)


def _file(folder: Path, device: int) -> Path:
    return folder / f"device{device}.json"


def _book(path: Path, mine: Holding) -> float:
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, or with its process
        others = [holding for holding in _read(path) if holding.pid != mine.pid and holding.alive]
        written = path.with_suffix(".new")
        written.write_text(json.dumps([holding.model_dump() for holding in (*others, mine)]), encoding="utf-8")
        written.replace(path)
    return sum(holding.gib for holding in others)


def _read(path: Path) -> tuple[Holding, ...]:
    try:
        return _HOLDINGS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return ()
    except ValueError:  # not ours: nobody can be found in it
        return ()


def _started(pid: int) -> int | None:
    """When the process started; None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return None if fields[0] in _DEAD else int(fields[19])
