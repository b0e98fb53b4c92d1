"""Hosts: their devices, who has them, and which are set aside."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path

from api.errors import declared
from api.parts import Given
from autotune.domain.device import Device, Quarantine
from autotune.domain.value import Value

router = APIRouter(prefix="/api/v1/hosts", tags=["hosts"])


class LeaseLine(Value):
    """The attempt that has a device; from `ended_at` on only its memory is waited for."""

    attempt: str
    since: datetime
    ended_at: datetime | None


class QuarantineLine(Value):
    """Why a device gets no trial, and since when."""

    reason: str
    since: datetime


class DeviceLine(Device):
    """A device with its lease and its quarantine, where it has one."""

    lease: LeaseLine | None = None
    quarantine: QuarantineLine | None = None


class HostLine(Value):
    """The devices of one host, as the dispatcher last found them; `source` says who counted them."""

    host: str
    source: str
    devices: tuple[DeviceLine, ...]


@router.get("", responses=declared())
def listing(parts: Given) -> list[HostLine]:
    """Hosts with their devices; none before the first trial that takes a device."""
    leases = {
        (lease.host, lease.device): LeaseLine(attempt=lease.attempt, since=lease.since, ended_at=lease.ended_at)
        for lease in parts.store.device_leases()
    }
    aside = {(q.host, q.device): QuarantineLine(reason=q.reason, since=q.since) for q in parts.store.quarantines()}
    return [
        HostLine(
            host=found.host,
            source=found.source,
            devices=tuple(
                DeviceLine(
                    **dict(device),
                    lease=leases.get((found.host, device.index)),
                    quarantine=aside.get((found.host, device.index)),
                )
                for device in found.devices
            ),
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
