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

from autotune.domain.device import HEALTHY, Device, DeviceUse
from autotune.errors import Unavailable

TIMEOUT_S = 30.0  # 2 s as a rule for 16 devices; a driver that is being reset does not answer at all
UNKNOWN = "unknown"  # where the column is empty
NO_MEMORY = "shows no memory"
_PLACES = ("/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi")
_PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")
_LOGIC_ID = 2  # the column of `npu-smi info -m`; the chip's name is the last one


class Chip(NamedTuple):
    """One chip of the table; `physical` is its Phy-ID, which single-chip cards do not have.

    `memory_mb` is 0 where the table shows none, as it does for a chip that does not answer.
    """

    name: str
    health: str
    physical: int | None
    used_mb: int
    memory_mb: int


ChipKey = tuple[int, int]  # NPU ID and Chip ID

_numbers: dict[Path, dict[ChipKey, tuple[int, str]]] = {}  # by program; asked once in a process


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
        # Memory-Usage and, where there is HBM, HBM-Usage; one of them may be `0 / 0`.
        used_mb, memory_mb = next(((u, t) for u, t in reversed(pairs) if t > 0), (0, 0))
        npu, _, name = head[0].partition(" ")
        if not npu.isdigit():
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
    """The devices by chip; a chip without a number of the runtime is none, where those are known at all.

    A chip without memory counts as large as the others, and as ill.
    """
    per_card = Counter(npu for npu, _ in chips)
    largest_mb = max((chip.memory_mb for chip in chips.values()), default=0)
    devices = {}
    for position, key in enumerate(sorted(chips)):
        chip = chips[key]
        if numbers and key not in numbers:
            continue
        index, name = numbers.get(key, (position if chip.physical is None else chip.physical, chip.name))
        short = name.removeprefix("Ascend").strip(" _") or name
        # The driver calls both dies of a 910C just so.
        short = "910C" if short == "910" and (per_card[key[0]] == 2 or chip.physical is not None) else short
        health = chip.health or UNKNOWN
        if chip.memory_mb == 0 and health == HEALTHY:
            health = NO_MEMORY
        memory_mb = chip.memory_mb or largest_mb
        if memory_mb:
            devices[key] = Device(index=index, card=key[0], memory_mb=memory_mb, chip=short, health=health)
    return devices


class NpuSmi:
    """The program on this host."""

    def __init__(self, program: Path, timeout_s: float = TIMEOUT_S) -> None:
        self._program = program
        self._timeout_s = timeout_s

    def read(self) -> tuple[tuple[Device, ...], dict[int, DeviceUse]]:
        """The devices in the order of their numbers, and their memory by number.

        Raises Unavailable when the program fails, takes longer than `timeout_s`, or shows no device.
        """
        if self._program not in _numbers:  # they change with a restart of the host only
            found = read_numbers(self._run("info", "-m"))
            if found:
                _numbers[self._program] = found
        text = self._run("info")
        chips = read_chips(text)
        held = read_held(text)
        devices = devices_of(chips, _numbers.get(self._program, {}))
        if not devices:
            raise Unavailable(f"{self._program} shows no device: {' '.join(text.split())[:200] or 'it says nothing'}")
        use = {
            device.index: DeviceUse(used_mb=chips[key].used_mb, held_mb=held.get(key, 0))
            for key, device in devices.items()
            if chips[key].memory_mb
        }
        return tuple(sorted(devices.values(), key=lambda device: device.index)), use

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
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{self._program} has not answered within {self._timeout_s:g} s") from error
        except OSError as error:
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
