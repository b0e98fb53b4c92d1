"""Bodies of `autotune hosts` and `autotune hosts release`."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

import typer

from autotune.cli.answers import Answer
from autotune.cli.client import Client
from autotune.cli.tables import NOTHING, print_json, shortened, table


class Lease(Answer):
    """The attempt that has a device."""

    attempt: str
    ended_at: datetime | None = None


class Aside(Answer):
    """Why a device is in quarantine."""

    reason: str
    since: datetime


class DeviceLine(Answer):
    """One device."""

    index: int
    card: int
    memory_mb: int
    chip: str
    health: str
    lease: Lease | None = None
    quarantine: Aside | None = None


class HostLine(Answer):
    """One host."""

    host: str
    source: str
    devices: tuple[DeviceLine, ...]


def listing(url: str, *, as_json: bool) -> None:
    """Every device of every host, and who has it."""
    with Client(url) as client:
        answer = client.get("/hosts")
        items = answer if isinstance(answer, list) else [answer]
        hosts = [client.understood(HostLine, item) for item in items]
    if as_json:
        print_json(answer)
        return
    rows = [
        [host.host, str(d.index), str(d.card), d.chip, f"{d.memory_mb / 1024:.0f}", d.health, _state(d)]
        for host in hosts
        for d in host.devices
    ]
    head = ["host", "device", "card", "chip", "memory GB", "health", "state"]
    typer.echo(table(head, rows, right=(1, 2, 4)) if rows else "no devices are known: no trial has asked for one yet")


def release(url: str, host: str, device: int, *, as_json: bool) -> None:
    """Lift the quarantine of a device."""
    with Client(url) as client:
        answer = client.post(f"/hosts/{quote(host, safe='')}/devices/{device}/release")
        lifted = client.understood(Aside, answer)
    if as_json:
        print_json(answer)
        return
    typer.echo(f"device {device} of {host} may be leased again; it was in quarantine: {shortened(lifted.reason)}")


def _state(device: DeviceLine) -> str:
    if device.quarantine is not None:
        return f"quarantine: {shortened(device.quarantine.reason)}"
    if device.lease is None:
        return "free" if device.health == "OK" else NOTHING
    over = "" if device.lease.ended_at is None else ", over: waits for its memory"
    return f"{device.lease.attempt}{over}"
