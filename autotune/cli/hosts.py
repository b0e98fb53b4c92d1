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
    held: bool = False
    free: bool = True
    lease: Lease | None = None
    quarantine: Aside | None = None


class HostLine(Answer):
    """One host."""

    host: str
    source: str
    problem: str | None = None
    devices: tuple[DeviceLine, ...]


def listing(url: str, *, as_json: bool) -> None:
    """Every device of every host, and who has it."""
    with Client(url) as client:
        answer, hosts = _hosts(client)
    if as_json:
        print_json(answer)
        return
    rows = [
        [host.host, str(d.index), str(d.card), d.chip, f"{d.memory_mb / 1024:.0f}", d.health, _state(d)]
        for host in hosts
        for d in host.devices
    ]
    head = ["host", "device", "card", "chip", "memory GB", "health", "state"]
    typer.echo(table(head, rows, right=(1, 2, 4)) if rows else "no devices are known")
    for host in hosts:
        if host.problem is not None:
            typer.echo(f"{host.host} takes no trials now, it cannot be asked: {shortened(host.problem)}")


def release(url: str, host: str, device: int | None, *, as_json: bool) -> None:
    """Lift the quarantine of a device, or of all devices of the host that are in quarantine."""
    with Client(url) as client:
        devices = _aside(client, host) if device is None else [device]
        answers = [client.post(f"/hosts/{quote(host, safe='')}/devices/{number}/release") for number in devices]
        lifted = [client.understood(Aside, answer) for answer in answers]
    if as_json:
        print_json(answers if device is None else answers[0])
        return
    if not lifted:
        typer.echo(f"no device of {host} is in quarantine")
    for number, aside in zip(devices, lifted, strict=True):
        typer.echo(f"device {number} of {host} may be leased again; it was in quarantine: {shortened(aside.reason)}")


def _hosts(client: Client) -> tuple[object, list[HostLine]]:
    """The answer as it came, and as it is understood."""
    answer = client.get("/hosts")
    items = answer if isinstance(answer, list) else [answer]
    return answer, [client.understood(HostLine, item) for item in items]


def _aside(client: Client, host: str) -> list[int]:
    """The devices of the host that are in quarantine."""
    return [d.index for found in _hosts(client)[1] if found.host == host for d in found.devices if d.quarantine]


def _state(device: DeviceLine) -> str:
    if device.quarantine is not None:
        return f"quarantine: {shortened(device.quarantine.reason)}"
    if device.lease is None:
        if device.held:
            return "in use by others"
        return "free" if device.free else NOTHING
    over = "" if device.lease.ended_at is None else ", over: waits for its memory"
    return f"{device.lease.attempt}{over}"
