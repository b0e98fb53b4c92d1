"""The accelerators of a host, and which of them a trial gets.

A device is what an engine counts from 0: one die. Two dies of a 910C share a card, with its power and the link between
them: a group of ranks gets whole cards, never halves of different ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from pydantic import Field

from autotune.domain.value import Value

HEALTHY = "OK"  # the word of npu-smi
SETTLE_S = 60.0  # a driver gives the memory of a dead process back within seconds
TOLERANCE_MB = 512  # an idle device's memory in use differs by less from one reading to the next

# Idle devices of 64 GB show 2.9 to 3.5 GB. Inside a container the driver does not say which process has the rest.
BUSY_SHARE = 0.15

ASCEND_ENGINES = frozenset({"vllm-ascend", "sglang-ascend"})  # all other engines compute on the CPU


class Device(Value):
    """One die. `index` is what ASCEND_RT_VISIBLE_DEVICES calls it, `health` what the driver says of it."""

    index: int = Field(ge=0)
    card: int = Field(ge=0)
    memory_mb: int = Field(gt=0)
    chip: str
    health: str = HEALTHY


class Inventory(Value):
    """The devices of one host. `source` says who counted them: `npu-smi`, `simulated`, `none`.

    `held`: devices that nobody here has and whose memory is in use all the same. `settle_s`: how long the memory of an
    attempt that is over is waited for. `problem`: why the host could not be asked; the devices are then those that
    it had before.
    """

    host: str
    devices: tuple[Device, ...]
    source: str
    held: tuple[int, ...] = ()
    settle_s: float = Field(default=SETTLE_S, gt=0)
    problem: str | None = None

    @property
    def cards(self) -> Sequence[Sequence[int]]:
        """The devices of each card, by number."""
        by_card: dict[int, list[int]] = {}
        for device in sorted(self.devices, key=lambda d: d.index):
            by_card.setdefault(device.card, []).append(device.index)
        return [by_card[card] for card in sorted(by_card)]


class DeviceUse(Value):
    """Memory of a device at one moment: all that is in use, and what processes hold of it."""

    used_mb: int = Field(ge=0)
    held_mb: int = Field(default=0, ge=0)

    @property
    def held(self) -> bool:
        """Whether a process has memory of it that counts."""
        return self.held_mb > TOLERANCE_MB

    def is_busy(self, memory_mb: int) -> bool:
        """Whether somebody uses a device of that memory, even where it is not told who."""
        return self.held or self.used_mb > memory_mb * BUSY_SHARE

    def is_idle(self, idle_mb: int | None) -> bool:
        """Whether it is back at that level; where the level is not known, whether no process holds memory."""
        return not self.held if idle_mb is None else self.used_mb <= idle_mb + TOLERANCE_MB


class HostReading(Value):
    """What one host says of its devices at one moment; `use` by number, None where it can't tell."""

    inventory: Inventory
    use: dict[int, DeviceUse] | None = None


class Placement(Value):
    """Where an attempt runs. `idle_mb` is the memory in use of each device before it, where that is known."""

    host: str
    devices: tuple[int, ...]
    idle_mb: tuple[int | None, ...] = ()

    def idle_of(self, device: int) -> int | None:
        """The idle level of one of the devices."""
        return self.idle_mb[self.devices.index(device)] if self.idle_mb else None


class DeviceLease(Value):
    """One device in the hands of an attempt; from `ended_at` on it only waits for its memory to be given back."""

    host: str
    device: int
    attempt: str
    since: datetime
    idle_mb: int | None = None
    ended_at: datetime | None = None


class Quarantine(Value):
    """A device that gets no trial until somebody lifts this. `attempt` had it last."""

    host: str
    device: int
    reason: str
    since: datetime
    attempt: str | None = None


def choose(inventory: Inventory, count: int, taken: Collection[int]) -> tuple[int, ...] | None:
    """So many devices that are healthy and not taken, in ascending order; None when they are not to be had.

    As many whole cards as the count fills; what is left of it lies on one card more, by preference on one that is
    broken into already. The same question has the same answer.
    """
    free = {device.index for device in inventory.devices if device.health == HEALTHY} - set(taken)
    whole = [card for card in inventory.cards if free.issuperset(card)]
    chosen: list[int] = []
    while whole and len(whole[0]) <= count - len(chosen):
        chosen += whole.pop(0)
    left = count - len(chosen)
    if left == 0:
        return tuple(sorted(chosen))
    parts = [[index for index in card if index in free and index not in chosen] for card in inventory.cards]
    fitting = [
        (len(part) == len(card), part)
        for part, card in zip(parts, inventory.cards, strict=True)
        if left <= len(part) and left < len(card)
    ]
    if not fitting:
        return None
    return tuple(sorted([*chosen, *min(fitting)[1][:left]]))
