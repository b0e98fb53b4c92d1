"""Gives devices to attempts, and takes them back once their memory is free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from autotune.domain.deployment import Deployment
from autotune.domain.device import (
    ASCEND_ENGINES,
    HEALTHY,
    SETTLE_S,
    DeviceLease,
    DeviceUse,
    Inventory,
    Placement,
    Quarantine,
    choose,
)
from autotune.engine.ports import Clock, DeviceSource, StudyStore
from autotune.errors import InvalidStudy, Unavailable

LOOK_S = 1.0  # between two looks at memory that is still in use
LAST_LOOK_S = 0.25  # the same, of a service that is being stopped
ROUND_S = 30.0  # between two looks at all hosts when no trial asks for devices
GONE = "it is not part of the service now"
_SIMULATED = "simulated"  # as the source of an inventory


class DeviceDesk:
    """Not thread-safe: belongs to the dispatcher. What it knows beside idle levels is in the store."""

    def __init__(self, store: StudyStore, source: DeviceSource, clock: Clock) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._next_look = self._next_round = clock.now()
        self._known: dict[str, Inventory] | None = None
        self._idle_mb: dict[tuple[str, int], int] = {}  # the least that was seen: leftovers must not add up

    def place(
        self, engine: str, deployment: Deployment, hosts: Collection[str], avoid: Collection[str] = ()
    ) -> Placement | None:
        """Host and devices of the next attempt; None where the engine takes none, or no host has any.

        `hosts` can take an attempt now; those in `avoid` come last.

        Raises InvalidStudy for more devices than any host has, Unavailable while they are not free.
        """
        if engine not in ASCEND_ENGINES:
            return None
        count = deployment.devices
        present = [inventory for inventory in self.look() if inventory.problem != GONE]
        having = [inventory for inventory in present if inventory.devices or inventory.problem]
        # A host without a driver simulates some: beside hosts with real ones those do not count.
        having = [inventory for inventory in having if inventory.source != _SIMULATED] or having
        if not having:
            return None
        if all(len(inventory.devices) < count and _is_known(inventory) for inventory in having):
            most = max(having, key=lambda inventory: len(inventory.devices))
            raise InvalidStudy(f"the study asks for {count} devices; {most.host} has {len(most.devices)}")
        leases = self._store.device_leases()
        quarantines = self._store.quarantines()
        attempts = Counter(host for host, _ in {(lease.host, lease.attempt) for lease in leases})
        reasons = []
        for inventory in sorted(having, key=lambda i: (i.host in avoid, attempts[i.host], i.host)):
            host = inventory.host
            if inventory.problem is not None:
                reasons.append(f"{host} cannot be asked: {inventory.problem}")
                continue
            if host not in hosts:
                reasons.append(f"{host} takes no further trial now")
                continue
            leased = {lease.device for lease in leases if lease.host == host}
            aside = {q.device for q in quarantines if q.host == host}
            foreign = set(inventory.held)
            found = choose(inventory, count, leased | aside | foreign)
            if found is not None:
                return Placement(host=host, devices=found, idle_mb=self._idle(host, found))
            ill = {device.index for device in inventory.devices if device.health != HEALTHY}
            counts = {"leased": leased, "in quarantine": aside, "in use by others": foreign - aside, "not healthy": ill}
            told = ", ".join(f"{len(devices)} {what}" for what, devices in counts.items() if devices)
            reasons.append(f"{host} has {len(inventory.devices)} ({told or 'none on whole cards'})")
        raise Unavailable(f"{count} devices on whole cards are not free: {'; '.join(reasons)}")

    def look(self) -> Sequence[Inventory]:
        """The hosts' devices as they are now, by host; kept in the store where they have changed.

        A host that does not answer, or has left, keeps the devices that it had, with a `problem`.
        """
        known = self._inventories()
        leased = {(lease.host, lease.device) for lease in self._store.device_leases()}
        seen = {inventory.host: self._with_held(inventory, leased) for inventory in self._source.inventories()}
        for host, old in known.items():
            new = seen.get(host)
            if new is None:
                seen[host] = old.model_copy(update={"problem": GONE})
            elif new.problem is not None and not new.devices:
                seen[host] = old.model_copy(update={"problem": new.problem})
        for host, inventory in seen.items():
            if inventory != known.get(host):
                self._store.put_inventory(inventory)
                known[host] = inventory
        return [known[host] for host in sorted(known)]

    def look_round(self) -> None:
        """Look at all hosts every `ROUND_S`: who asks the service sees them before a trial needs devices."""
        if self._clock.now() < self._next_round:
            return
        try:
            self.look()
        except Unavailable:
            return  # whoever places a trial is told
        finally:
            self._next_round = self._clock.now() + timedelta(seconds=ROUND_S)

    def give_back(self, patience_s: float) -> None:
        """As `settle`, for the last time: looks until no attempt that is over has a device, or for so long."""
        end = self._clock.now() + timedelta(seconds=patience_s)
        while any(lease.ended_at is not None for lease in self._store.device_leases()):
            self._next_look = self._clock.now()
            self.settle()
            if self._clock.now() >= end:
                return
            self._clock.sleep(LAST_LOOK_S)

    def settle(self) -> None:
        """Take back what attempts that are over have given free; set aside what stays in use for too long.

        A device whose memory can't be read for as long, as when its host was lost, is set aside too.
        """
        if self._clock.now() < self._next_look:
            return
        ended = [lease for lease in self._store.device_leases() if lease.ended_at is not None]
        for host in sorted({lease.host for lease in ended}):
            use: Mapping[int, DeviceUse] | None = None
            problem = None
            try:
                use = self._source.use(host)
            except Unavailable as error:
                problem = error.message
            for lease in ended:
                if lease.host == host:
                    self._settle(lease, use, problem)
        if ended:
            self._next_look = self._clock.now() + timedelta(seconds=LOOK_S)

    def _settle(self, lease: DeviceLease, use: Mapping[int, DeviceUse] | None, problem: str | None) -> None:
        found = None if use is None else use.get(lease.device)
        nobody_can_tell = use is None and problem is None
        if nobody_can_tell or (found is not None and found.is_idle(lease.idle_mb)):
            self._store.release_device(lease)
            return
        assert lease.ended_at is not None
        now = self._clock.now()
        known = self._inventories().get(lease.host)
        patience_s = SETTLE_S if known is None else known.settle_s
        if now - lease.ended_at < timedelta(seconds=patience_s):
            return
        waited = f"{patience_s:g} s after attempt {lease.attempt} had ended"
        if found is None:
            reason = f"its memory could not be read {waited}: {problem or 'the host does not show it'}"
        elif lease.idle_mb is None:
            reason = f"processes hold {found.held_mb} MB {waited}"
        else:
            reason = f"{found.used_mb} MB in use {waited}, {lease.idle_mb} MB before it"
        self._store.quarantine_device(
            Quarantine(host=lease.host, device=lease.device, reason=reason, since=now, attempt=lease.attempt)
        )

    def _inventories(self) -> dict[str, Inventory]:
        """What the store knows; a dispatcher starts with what its predecessor saw."""
        if self._known is None:
            self._known = {inventory.host: inventory for inventory in self._store.inventories()}
        return self._known

    def _with_held(self, inventory: Inventory, leased: Collection[tuple[str, int]]) -> Inventory:
        if inventory.problem is not None or not inventory.devices:
            return inventory
        try:
            use = self._source.use(inventory.host) or {}
        except Unavailable as error:
            return inventory.model_copy(update={"problem": error.message})
        ours = {device for host, device in leased if host == inventory.host}
        others = (d for d in inventory.devices if d.index not in ours and d.index in use)
        held = tuple(sorted(d.index for d in others if use[d.index].is_busy(d.memory_mb)))
        return inventory.model_copy(update={"held": held})

    def _idle(self, host: str, devices: Sequence[int]) -> tuple[int | None, ...]:
        use = self._source.use(host) or {}
        for device in devices:
            if device in use:
                seen = use[device].used_mb
                self._idle_mb[host, device] = min(seen, self._idle_mb.get((host, device), seen))
        return tuple(self._idle_mb.get((host, device)) for device in devices)


def _is_known(inventory: Inventory) -> bool:
    """Whether it was ever seen how many devices the host has."""
    return inventory.problem is None or bool(inventory.devices)
