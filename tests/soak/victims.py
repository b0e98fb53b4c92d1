"""What is killed, when, and how the attempt must end."""

from __future__ import annotations

import contextlib
import json
import os
from enum import StrEnum
from pathlib import Path

import psutil

from tests.e2e.running_service import RunningService
from workers.marked_processes import process_stat

Pid = tuple[int, int]  # with its start time in clock ticks: numbers are given out again


class Victim(StrEnum):
    """A process that gets SIGKILL."""

    WORKER = "worker"
    SUPERVISOR = "supervisor"
    PARENT = "server parent"
    CHILD = "server child"
    RAYLET = "raylet"
    DISPATCHER = "dispatcher"
    API = "api"


class Moment(StrEnum):
    """How far an attempt is, by what lies in its folder."""

    LAUNCHING = "launching"
    LOADING = "loading"
    READY = "ready"
    WARM_UP = "warm-up"
    MEASURING = "measuring"
    REPORTING = "reporting"


CONTROL_PLANE = frozenset({Victim.DISPATCHER, Victim.API})
OF_SERVER = frozenset({Victim.PARENT, Victim.CHILD})

MEASURED = "measured"
CRASH = "crash"
INFRASTRUCTURE = "infrastructure"


def right_ends(victim: Victim, moment: Moment) -> frozenset[str]:
    """`measured`, or the classes of failure that are true.

    Once everything is measured, what ends can no longer hurt the measurement: it counts, unless the one that keeps
    it, the worker, has gone before it was written down.
    """
    if victim in CONTROL_PLANE:
        ends = {MEASURED}
    else:
        ends = {CRASH} if victim in OF_SERVER else {INFRASTRUCTURE}
        if moment is Moment.REPORTING:
            ends.add(MEASURED)
    return frozenset(ends)


def identified(pid: int) -> Pid | None:
    """None when there is no such process."""
    stat = process_stat(pid)
    return None if stat is None or stat.state in "ZX" else (pid, stat.started)


def find(victim: Victim, folder: Path, service: RunningService) -> int | None:
    """The process id; None when it does not run (yet, or any more)."""
    match victim:
        case Victim.DISPATCHER | Victim.API:
            return _child(service, {Victim.API: "api.app", Victim.DISPATCHER: "api.dispatcher"}[victim])
        case Victim.RAYLET:
            return _raylet(service.data)
        case Victim.WORKER:
            record = next((p for p in (folder / "ray.json", folder / "started") if p.exists()), None)
            pid = json.loads(record.read_text())["pid"] if record else None
        case Victim.SUPERVISOR:
            stat = process_stat(server) if (server := _named(folder, "parent")) is not None else None
            pid = stat.parent if stat is not None and stat.state not in "ZX" else None
            pid = pid if pid is not None and _is_supervisor(pid) else None
        case Victim.PARENT:
            pid = _named(folder, "parent")
        case Victim.CHILD:
            pid = _named(folder, "core")
    return pid if pid is not None and identified(pid) is not None else None


def recorded(folder: Path) -> dict[str, int]:
    """The server's own word on its processes; empty before it has spoken."""
    try:
        pids: dict[str, int] = json.loads((folder / "pids.json").read_text())
    except FileNotFoundError:
        return {}
    return pids


def _child(service: RunningService, module: str) -> int | None:
    """The child of `up` that runs the module now."""
    for child in psutil.Process(service.process.pid).children():
        with contextlib.suppress(psutil.Error):  # it ends while we look at it
            if module in child.cmdline():
                return child.pid
    return None


def _named(folder: Path, name: str) -> int | None:
    return recorded(folder).get(name)


def _is_supervisor(pid: int) -> bool:
    try:
        return b"workers.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _raylet(data: Path) -> int | None:
    try:
        leader = int(json.loads((data / "run" / "ray-head.json").read_text())["pid"])
    except FileNotFoundError:
        return None
    for process in psutil.process_iter(["name"]):
        try:
            if process.info["name"] == "raylet" and os.getsid(process.pid) == leader:
                return process.pid
        except ProcessLookupError:
            continue
    return None
