"""A record of punctuality: when each token was due and when its bytes had gone to the kernel.

Kept in memory while the server runs and written once, when it ends; the record costs a microsecond a token.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path

PACE_FILE_ENV = "AUTOTUNE_SIM_PACE_FILE"  # a setting of benchmarks: nothing else reads or sets it
_FIELDS = 4


class Pace:
    """Rows of (request number, index of its event, due ns, sent ns), both on the monotonic clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = array("q")

    def sent(self, number: int, index: int, due_ns: int, sent_ns: int) -> None:
        self._rows.extend((number, index, due_ns, sent_ns))

    def write(self) -> None:
        """Raises OSError."""
        self._path.write_bytes(self._rows.tobytes())


def pace_of(env: Mapping[str, str]) -> Pace | None:
    """A record where AUTOTUNE_SIM_PACE_FILE names a file for it."""
    path = env.get(PACE_FILE_ENV)
    return Pace(Path(path)) if path else None


def read_pace(path: Path) -> list[tuple[int, int, int, int]]:
    """What a server has written, row by row. Raises OSError, ValueError for a file that is no record."""
    values = array("q")
    values.frombytes(path.read_bytes())
    return list(zip(*(values[field::_FIELDS] for field in range(_FIELDS)), strict=True))
