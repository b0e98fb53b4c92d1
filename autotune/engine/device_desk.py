"""Gives devices to attempts, and takes them back once their memory is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta

from autotune.domain.deployment import Deployment
from autotune.domain.device import (
    ASCEND_ENGINES,
    HEALTHY,
    TOLERANCE_MB,
    DeviceLease,
    DeviceUse,
    Inventory,
    Placement,
    Quarantine,
    choose,
)
from autotune.engine.ports import Clock, DeviceSource, StudyStore
from autotune.errors import InvalidStudy, Unavailable

SETTLE_S = 60.0  # a driver gives the memory of a dead process back within seconds
LOOK_S = 1.0  # between two looks at memory that is still in use


class DeviceDesk:
    """Not thread-safe: belongs to the dispatcher. What it knows beside idle levels is in the store."""

    def __init__(self, store: StudyStore, source: DeviceSource, clock: Clock) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._not_before = clock.now()
        self._known: Sequence[Inventory] = ()
        self._idle_mb: dict[tuple[str, int], int] = {}  # the least that was seen: leftovers must not add up

    def place(self, engine: str, deployment: Deployment, hosts: Sequence[str]) -> Placement | None:
        """The devices of the next attempt; None where the engine takes none, or no host has any.

        `hosts` may take attempts. Nothing is leased while the devices of one of them are not known: an attempt
        cannot be told on which host to run.

        Raises InvalidStudy for more devices than any host has, Unavailable while they are not free.
        """
        if engine not in ASCEND_ENGINES:
            return None
        inventories = [inventory for inventory in self.look() if inventory.devices]
        if not inventories or set(hosts) - {inventory.host for inventory in inventories}:
            return None
        if all(len(inventory.devices) < deployment.devices for inventory in inventories):
            most = max(inventories, key=lambda inventory: len(inventory.devices))
            words = f"asks for {deployment.devices} devices; {most.host} has {len(most.devices)}"
            raise InvalidStudy(f"the study {words}")
        leases = self._store.device_leases()
        attempts = Counter(host for host, _ in {(lease.host, lease.attempt) for lease in leases})
        reasons = []
        for inventory in sorted(inventories, key=lambda i: (attempts[i.host], i.host)):
            use = self._source.use(inventory.host) or {}
            leased = {lease.device for lease in leases if lease.host == inventory.host}
            aside = {q.device for q in self._store.quarantines() if q.host == inventory.host}
            foreign = {device for device, found in use.items() if found.held_mb > TOLERANCE_MB} - leased
            found = choose(inventory, deployment.devices, leased | aside | foreign)
            if found is not None:
                idle = tuple(self._idle(inventory.host, device, use) for device in found)
                return Placement(host=inventory.host, devices=found, idle_mb=idle)
            ill = {device.index for device in inventory.devices if device.health != HEALTHY}
            counts = {"leased": leased, "in quarantine": aside, "in use by others": foreign - aside, "not healthy": ill}
            told = ", ".join(f"{len(devices)} {what}" for what, devices in counts.items() if devices)
            reasons.append(f"{inventory.host} has {len(inventory.devices)} ({told or 'none on whole cards'})")
        raise Unavailable(f"{deployment.devices} devices on whole cards are not free: {'; '.join(reasons)}")

    def look(self) -> Sequence[Inventory]:
        """The hosts' devices as they are now; kept in the store where they have changed."""
        found = self._source.inventories()
        if found != self._known:
            for inventory in found:
                self._store.put_inventory(inventory)
            self._known = found
        return found

    def settle(self) -> None:
        """Take back what attempts that are over have given free; set aside what stays in use for too long."""
        now = self._clock.now()
        if now < self._not_before:
            return
        ended = [lease for lease in self._store.device_leases() if lease.ended_at is not None]
        for host in sorted({lease.host for lease in ended}):
            try:
                use, problem = self._source.use(host), None
            except Unavailable as error:
                use, problem = {}, error.message
            for lease in ended:
                if lease.host == host:
                    self._settle(lease, use, problem)
        if ended:
            self._not_before = now + timedelta(seconds=LOOK_S)

    def _settle(self, lease: DeviceLease, use: Mapping[int, DeviceUse] | None, problem: str | None) -> None:
        now = self._clock.now()
        found = None if use is None else use.get(lease.device)
        if problem is None and (found is None or lease.idle_mb is None or _is_idle(found, lease.idle_mb)):
            self._store.release_device(lease)
            return
        assert lease.ended_at is not None
        if now - lease.ended_at < timedelta(seconds=SETTLE_S):
            return
        waited = f"{SETTLE_S:g} s after attempt {lease.attempt} had ended"
        if found is None:
            reason = f"its memory could not be read {waited}: {problem}"
        else:
            reason = f"{found.used_mb} MB in use {waited}, {lease.idle_mb} MB before it"
        self._store.quarantine_device(
            Quarantine(host=lease.host, device=lease.device, reason=reason, since=now),
        )

    def _idle(self, host: str, device: int, use: Mapping[int, DeviceUse]) -> int | None:
        if device not in use:
            return None
        key = (host, device)
        self._idle_mb[key] = min(use[device].used_mb, self._idle_mb.get(key, use[device].used_mb))
        return self._idle_mb[key]


def _is_idle(use: DeviceUse, idle_mb: int) -> bool:
    return use.used_mb <= idle_mb + TOLERANCE_MB
