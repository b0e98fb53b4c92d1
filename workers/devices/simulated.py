"""Simulated devices: as many as are asked for, with memory that simulated servers book while they live."""

from __future__ import annotations

from pathlib import Path

from autotune.domain.device import Device, DeviceUse
from workers.devices.held_memory import held_gib

DEVICES = 16  # one host of 910C: eight cards of two dies
DIES_PER_CARD = 2
CHIP = "910C"
MEMORY_MB = 65536
IDLE_MB = 2900  # what the driver of a real 910C keeps for itself
_MB_PER_GIB = 1024


def registry(attempts_root: Path) -> Path:
    """Where servers of simulated templates book their memory: beside the folder of attempts, one for all."""
    return attempts_root.parent / "run" / "devices"


def simulated_devices(count: int, dies_per_card: int, chip: str, memory_mb: int) -> tuple[Device, ...]:
    """All of them healthy."""
    return tuple(
        Device(index=index, card=index // dies_per_card, memory_mb=memory_mb, chip=chip) for index in range(count)
    )


def simulated_use(folder: Path, count: int) -> dict[int, DeviceUse]:
    """By number, from the registry in that folder."""
    held = {index: round(held_gib(folder, index) * _MB_PER_GIB) for index in range(count)}
    return {index: DeviceUse(used_mb=IDLE_MB + mb, held_mb=mb) for index, mb in held.items()}
