"""What is under way, on standard error: a line for each step, and how far it is where somebody looks on."""

from __future__ import annotations

import sys
from typing import TextIO

from workers.load.spec import LoadTally

_CLEAR = "\r\x1b[K"


class Progress:
    """Writes to a terminal, or plainly to anything else."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._open = False

    def say(self, line: str) -> None:
        """A line that stays."""
        self._write(f"{self._over()}{line}\n")

    def tally(self, what: str, tally: LoadTally) -> None:
        """How a phase is doing; only a terminal shows it."""
        if self._live:
            failed = f", {tally.failed} failed ({tally.error})" if tally.failed else ""
            self._write(f"{_CLEAR}{what}: {tally.ended} requests ended{failed}")
            self._open = True

    def end(self) -> None:
        """Nothing unfinished is left on the terminal."""
        self._write(self._over())

    def _over(self) -> str:
        was, self._open = self._open, False
        return _CLEAR if was else ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
