"""Devices in the store of tests: leases, quarantines, inventories in dictionaries."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime

from autotune.domain.device import DeviceLease, Inventory, Placement, Quarantine
from autotune.errors import Conflict, NotFound
from autotune.storage.event_data import EventKind


class InMemoryDevices:
    """The part of StudyStore that is about devices; `take` and `end` are for the rest of the store."""

    def __init__(self) -> None:
        self._held = threading.RLock()
        self._leased: dict[tuple[str, int], DeviceLease] = {}
        self._aside: dict[tuple[str, int], Quarantine] = {}
        self._found: dict[str, Inventory] = {}

    def tell_of_device(self, kind: EventKind, quarantine: Quarantine) -> None:
        """An event of the study whose attempt had the device; for the rest of the store."""
        raise NotImplementedError

    def take(self, placement: Placement, uid: str, now: datetime) -> None:
        with self._held:
            keys = [(placement.host, device) for device in placement.devices]
            if any(key in self._leased or key in self._aside for key in keys):
                raise Conflict("one of the devices is not free")
            for host, device in keys:
                lease = DeviceLease(host=host, device=device, attempt=uid, since=now, idle_mb=placement.idle_of(device))
                self._leased[host, device] = lease

    def end(self, uid: str, now: datetime) -> None:
        with self._held:
            for key, lease in self._leased.items():
                if lease.attempt == uid and lease.ended_at is None:
                    self._leased[key] = lease.model_copy(update={"ended_at": now})

    def device_leases(self) -> Sequence[DeviceLease]:
        with self._held:
            return [self._leased[key] for key in sorted(self._leased)]

    def release_device(self, lease: DeviceLease) -> None:
        with self._held:
            held = self._leased.get((lease.host, lease.device))
            if held is not None and held.attempt == lease.attempt:
                del self._leased[lease.host, lease.device]

    def quarantine_device(self, quarantine: Quarantine) -> None:
        with self._held:
            key = (quarantine.host, quarantine.device)
            if key in self._leased and self._leased[key].ended_at is not None:
                del self._leased[key]
            if key not in self._aside:
                self._aside[key] = quarantine
                self.tell_of_device(EventKind.DEVICE_QUARANTINED, quarantine)

    def quarantines(self) -> Sequence[Quarantine]:
        with self._held:
            return [self._aside[key] for key in sorted(self._aside)]

    def lift_quarantine(self, host: str, device: int) -> Quarantine:
        with self._held:
            if (host, device) not in self._aside:
                raise NotFound(f"device {device} of host {host} is not in quarantine")
            lifted = self._aside.pop((host, device))
            self.tell_of_device(EventKind.DEVICE_RELEASED, lifted)
            return lifted

    def put_inventory(self, inventory: Inventory) -> None:
        with self._held:
            self._found[inventory.host] = inventory

    def inventories(self) -> Sequence[Inventory]:
        with self._held:
            return [self._found[host] for host in sorted(self._found)]
