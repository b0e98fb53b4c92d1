"""Devices in the database: leases of attempts, quarantines, inventories. All within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlmodel import Session, col, delete, select, update

from autotune.domain.device import DeviceLease, Inventory, Placement, Quarantine
from autotune.errors import Conflict, NotFound
from autotune.storage import journal, rows
from autotune.storage.event_data import EventKind, device_data
from autotune.storage.schema import AttemptRow, DeviceLeaseRow, InventoryRow, QuarantineRow, TrialRow

MAX_INT = 2**31 - 1  # of an INTEGER column on PostgreSQL


def take(session: Session, placement: Placement, uid: str, now: datetime) -> None:
    """Lease the devices to the attempt, all of them or none: Conflict when one is leased or in quarantine."""
    for device in placement.devices:
        key = (placement.host, device)
        if session.get(DeviceLeaseRow, key) is not None or session.get(QuarantineRow, key) is not None:
            raise Conflict(f"device {device} of {placement.host} is not free")
        session.add(
            DeviceLeaseRow(host=placement.host, device=device, uid=uid, since=now, idle_mb=placement.idle_of(device))
        )


def end(session: Session, uid: str, now: datetime) -> None:
    """The attempt is over: its devices wait for their memory."""
    mine = (col(DeviceLeaseRow.uid) == uid, col(DeviceLeaseRow.ended_at).is_(None))
    session.exec(update(DeviceLeaseRow).where(*mine).values(ended_at=now))


def leases(session: Session) -> Sequence[DeviceLease]:
    """By host and device."""
    ordered = select(DeviceLeaseRow).order_by(col(DeviceLeaseRow.host), col(DeviceLeaseRow.device))
    return [
        DeviceLease(
            host=row.host,
            device=row.device,
            attempt=row.uid,
            since=row.since,
            idle_mb=row.idle_mb,
            ended_at=row.ended_at,
        )
        for row in session.exec(ordered)
    ]


def release(session: Session, lease: DeviceLease) -> None:
    """Give the device back, if that attempt still has it."""
    row = session.get(DeviceLeaseRow, (lease.host, lease.device))
    if row is not None and row.uid == lease.attempt:
        session.delete(row)


def set_aside(session: Session, quarantine: Quarantine) -> None:
    """In place of the lease of an attempt that is over; the first reason stays."""
    of_device = (col(DeviceLeaseRow.host) == quarantine.host, col(DeviceLeaseRow.device) == quarantine.device)
    session.exec(delete(DeviceLeaseRow).where(*of_device, col(DeviceLeaseRow.ended_at).is_not(None)))
    if session.get(QuarantineRow, (quarantine.host, quarantine.device)) is None:
        session.add(QuarantineRow(**dict(quarantine)))
        _tell(session, EventKind.DEVICE_QUARANTINED, quarantine, quarantine.since)


def quarantines(session: Session) -> Sequence[Quarantine]:
    """By host and device."""
    ordered = select(QuarantineRow).order_by(col(QuarantineRow.host), col(QuarantineRow.device))
    return [_quarantine(row) for row in session.exec(ordered)]


def lift(session: Session, host: str, device: int, now: datetime) -> Quarantine:
    """Raises NotFound where there is none."""
    row = session.get(QuarantineRow, (host, device)) if 0 <= device <= MAX_INT else None
    if row is None:
        raise NotFound(f"device {device} of host {host} is not in quarantine")
    lifted = _quarantine(row)
    session.delete(row)
    _tell(session, EventKind.DEVICE_RELEASED, lifted, now)
    return lifted


def put_inventory(session: Session, inventory: Inventory) -> None:
    """What is known of the host from now on."""
    row = session.get(InventoryRow, inventory.host) or InventoryRow(host=inventory.host, body="")
    row.body = rows.to_json(inventory)
    session.add(row)


def inventories(session: Session) -> Sequence[Inventory]:
    """By host."""
    found = session.exec(select(InventoryRow).order_by(col(InventoryRow.host)))
    return [Inventory.model_validate_json(row.body) for row in found]


def _quarantine(row: QuarantineRow) -> Quarantine:
    return Quarantine(host=row.host, device=row.device, reason=row.reason, since=row.since, attempt=row.attempt)


def _tell(session: Session, kind: EventKind, quarantine: Quarantine, now: datetime) -> None:
    """Where the attempt that had the device is known: every event belongs to a study."""
    of_attempt = select(TrialRow).join(AttemptRow, col(AttemptRow.trial_id) == col(TrialRow.id))
    trial = session.exec(of_attempt.where(col(AttemptRow.uid) == quarantine.attempt)).first()
    if trial is not None:
        data = device_data(quarantine)
        journal.append(session, kind, at=now, study_id=trial.study_id, trial_number=trial.number, data=data)
