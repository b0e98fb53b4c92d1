"""Reads what `npu-smi` prints. Its tables are meant for people, and differ between driver versions and chips.

`npu-smi info` has two lines per chip (on a 910C two chips per card) and then a table of processes; `npu-smi info -m`
says which number the runtime gives to a chip (Chip Logic ID, `-` for chips that compute nothing).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from autotune.domain.device import Device, DeviceUse
from autotune.errors import Unavailable

TIMEOUT_S = 30.0  # 2 s as a rule for 16 devices; a driver that is being reset does not answer at all
_PLACES = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")
_PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")
_LOGIC_ID = 2  # the column of `npu-smi info -m`; the chip's name is the last one


class Chip(NamedTuple):
    """One chip of the table; `physical` is its Phy-ID, which single-chip cards do not have."""

    name: str
    health: str
    physical: int | None
    used_mb: int
    memory_mb: int


ChipKey = tuple[int, int]  # NPU ID and Chip ID


def find_program() -> Path | None:
    """Where npu-smi lies on this host; None on a host without the driver."""
    found = shutil.which("npu-smi") or next((place for place in _PLACES if Path(place).is_file()), None)
    return Path(found) if found else None


def read_chips(text: str) -> dict[ChipKey, Chip]:
    """The chips in `npu-smi info`, by NPU ID and Chip ID. Empty for a text that is something else."""
    chips: dict[ChipKey, Chip] = {}
    first: list[str] | None = None
    for cells in _rows(text):
        if cells[1].startswith("Process id"):
            break
        if len(cells) != 3:
            continue
        words = cells[0].split()
        if not words or not words[0].isdigit():
            first = None
            continue
        if first is None:
            first = cells
            continue
        head, first = first, None
        pairs = [(int(used), int(total)) for used, total in _PAIR.findall(cells[2])]
        # Memory-Usage and HBM-Usage; a chip without HBM shows `0 / 0` there.
        used_mb, memory_mb = next(((u, t) for u, t in reversed(pairs) if t > 0), (0, 0))
        npu, _, name = head[0].partition(" ")
        if not npu.isdigit() or memory_mb == 0:
            continue
        physical = int(words[1]) if len(words) > 1 and words[1].isdigit() else None
        chips[int(npu), int(words[0])] = Chip(name.strip(), head[1], physical, used_mb, memory_mb)
    return chips


def read_held(text: str) -> dict[ChipKey, int]:
    """MB that processes hold of each chip, from the second table of `npu-smi info`."""
    held: Counter[ChipKey] = Counter()
    inside = False
    for cells in _rows(text):
        if cells[1].startswith("Process id"):
            inside = True
            continue
        numbers = cells[0].split()
        # A process may have no name, and newer drivers add a column: its id inside the container.
        if inside and len(cells) >= 4 and len(numbers) == 2 and all(word.isdigit() for word in [*numbers, cells[3]]):
            held[int(numbers[0]), int(numbers[1])] += int(cells[3])
    return dict(held)


def read_numbers(text: str) -> dict[ChipKey, tuple[int, str]]:
    """The runtime's number and the name of each chip that computes, from `npu-smi info -m`."""
    numbers: dict[ChipKey, tuple[int, str]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > _LOGIC_ID + 1 and all(word.isdigit() for word in words[: _LOGIC_ID + 1]):
            name = words[_LOGIC_ID + 1 :]
            # A column Chip Phy-ID stands before the name on cards of several chips.
            name = name[1:] if len(name) > 1 and name[0].isdigit() else name
            numbers[int(words[0]), int(words[1])] = (int(words[_LOGIC_ID]), " ".join(name))
    return numbers


def devices_of(chips: Mapping[ChipKey, Chip], numbers: Mapping[ChipKey, tuple[int, str]]) -> dict[ChipKey, Device]:
    """The devices by chip; a chip without a number of the runtime is none, where those are known at all."""
    per_card = Counter(npu for npu, _ in chips)
    devices = {}
    for position, key in enumerate(sorted(chips)):
        chip = chips[key]
        if numbers and key not in numbers:
            continue
        index, name = numbers.get(key, (position if chip.physical is None else chip.physical, chip.name))
        short = name.removeprefix("Ascend").strip(" _") or name
        # The driver calls both dies of a 910C just so.
        short = "910C" if short == "910" and per_card[key[0]] == 2 else short
        devices[key] = Device(index=index, card=key[0], memory_mb=chip.memory_mb, chip=short, health=chip.health)
    return devices


class NpuSmi:
    """The program on this host."""

    def __init__(self, program: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._program = program
        self._timeout_s = timeout_s
        self._numbers: dict[ChipKey, tuple[int, str]] = {}

    def devices(self) -> tuple[Device, ...]:
        """By number. Raises Unavailable when the program fails or shows no chip."""
        return tuple(sorted(self._read()[0].values(), key=lambda device: device.index))

    def use(self) -> dict[int, DeviceUse]:
        """By number. Raises Unavailable as above."""
        devices, chips, held = self._read()
        return {
            device.index: DeviceUse(used_mb=chips[key].used_mb, held_mb=held.get(key, 0))
            for key, device in devices.items()
        }

    def _read(self) -> tuple[dict[ChipKey, Device], dict[ChipKey, Chip], dict[ChipKey, int]]:
        if not self._numbers:  # they change with a restart of the host only
            self._numbers = read_numbers(self._run("info", "-m"))
        text = self._run("info")
        chips = read_chips(text)
        if not chips:
            raise Unavailable(f"{self._program} shows no device: {' '.join(text.split())[:200]}")
        return devices_of(chips, self._numbers), chips, read_held(text)

    def _run(self, *words: str) -> str:
        try:
            done = subprocess.run(
                [str(self._program), *words],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{self._program} cannot be asked: {error}") from error
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())[:200]
            raise Unavailable(f"{self._program} {' '.join(words)} ended with {done.returncode}: {said}")
        return done.stdout


def _rows(text: str) -> list[list[str]]:
    """The cells of each line of a table that has at least two."""
    lines = [line.strip() for line in text.splitlines()]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [cells for cells in rows if len(cells) > 1]
