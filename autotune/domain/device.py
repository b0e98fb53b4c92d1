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
TOLERANCE_MB = 512  # an idle device's memory in use differs by less from one reading to the next

ASCEND_ENGINES = frozenset({"vllm-ascend", "sglang-ascend"})  # all other engines compute on the CPU


class Device(Value):
    """One die. `index` is what ASCEND_RT_VISIBLE_DEVICES calls it, `health` what the driver says of it."""

    index: int = Field(ge=0)
    card: int = Field(ge=0)
    memory_mb: int = Field(gt=0)
    chip: str
    health: str = HEALTHY


class Inventory(Value):
    """The devices of one host. `source` says who counted them: `npu-smi`, `simulated`, `none`."""

    host: str
    devices: tuple[Device, ...]
    source: str

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
    """A device that gets no trial until somebody lifts this."""

    host: str
    device: int
    reason: str
    since: datetime


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
