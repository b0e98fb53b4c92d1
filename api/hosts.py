"""Hosts: their devices, who has them, and which are set aside."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path

from api.errors import declared
from api.parts import Given
from autotune.domain.device import HEALTHY, Device, Inventory, Quarantine
from autotune.domain.value import Value

router = APIRouter(prefix="/api/v1/hosts", tags=["hosts"])


class LeaseLine(Value):
    """The attempt that has a device; from `ended_at` on only its memory is waited for."""

    attempt: str
    since: datetime
    ended_at: datetime | None


class QuarantineLine(Value):
    """Why a device gets no trial, since when, and the attempt that had it last."""

    reason: str
    since: datetime
    attempt: str | None = None


class DeviceLine(Device):
    """A device with its lease and its quarantine, where it has one.

    `held`: its memory is in use, and not by an attempt. `free`: it may be leased now.
    """

    held: bool = False
    free: bool
    lease: LeaseLine | None = None
    quarantine: QuarantineLine | None = None


class HostLine(Value):
    """The devices of one host, as the dispatcher last found them; `source` says who counted them.

    `problem`: why it could not be asked; nothing is leased there meanwhile. `settle_s`: how long the memory of an
    attempt that is over is waited for.
    """

    host: str
    source: str
    problem: str | None
    settle_s: float
    devices: tuple[DeviceLine, ...]


@router.get("", responses=declared())
def listing(parts: Given) -> list[HostLine]:
    """Hosts with their devices; none before a dispatcher has looked."""
    leases = {
        (lease.host, lease.device): LeaseLine(attempt=lease.attempt, since=lease.since, ended_at=lease.ended_at)
        for lease in parts.store.device_leases()
    }
    aside = {
        (q.host, q.device): QuarantineLine(reason=q.reason, since=q.since, attempt=q.attempt)
        for q in parts.store.quarantines()
    }

    def line(found: Inventory, device: Device) -> DeviceLine:
        key = (found.host, device.index)
        held = device.index in found.held
        usable = found.problem is None and device.health == HEALTHY and not held
        return DeviceLine(
            **dict(device),
            held=held,
            free=usable and key not in leases and key not in aside,
            lease=leases.get(key),
            quarantine=aside.get(key),
        )

    return [
        HostLine(
            host=found.host,
            source=found.source,
            problem=found.problem,
            settle_s=found.settle_s,
            devices=tuple(line(found, device) for device in found.devices),
        )
        for found in parts.store.inventories()
    ]


@router.post("/{host}/devices/{device}/release", responses=declared(403, 404))
def release(
    host: Annotated[str, Path(max_length=200, description="The host's name.")],
    device: Annotated[int, Path(ge=0, le=2**31 - 1, description="The device's number.")],
    parts: Given,
) -> Quarantine:
    """Lift a quarantine: the device may get trials again. The answer is what was lifted."""
    return parts.store.lift_quarantine(host, device)
