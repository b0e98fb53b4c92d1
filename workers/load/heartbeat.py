"""How late the event loop comes to its timers: the only measure of our lag where the kernel gives no times."""

from __future__ import annotations

import asyncio
import sys
import time
from bisect import bisect_left
from typing import Self

HEARTBEAT_S = 0.01


class Heartbeat:
    """Beats while it is entered and notes how late each beat was."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._at_ns: list[int] = []
        self._late_ms: list[float] = []
        self._due_ns = 0
        self._wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def worst_ms(self, start_ns: int = 0, end_ns: int = sys.maxsize) -> float:
        """The longest delay between two monotonic times, with the beat behind them; 0 without any beat."""
        low = bisect_left(self._at_ns, start_ns)
        high = bisect_left(self._at_ns, end_ns) + 1
        return max(self._late_ms[low:high], default=0.0)

    def _wait(self) -> None:
        # Not the loop's own time: uvloop keeps it in whole ms.
        self._due_ns = time.monotonic_ns() + int(HEARTBEAT_S * 1e9)
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)

    def _beat(self) -> None:
        now = time.monotonic_ns()
        self._at_ns.append(now)
        self._late_ms.append(max(now - self._due_ns, 0) / 1e6)
        self._wait()
