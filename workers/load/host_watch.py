"""How this host and this process fare while a level is measured."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from workers.load.recording import realtime_offset_ns
from workers.load.spec import HostFacts

STAT = Path("/proc/stat")
_STEAL = 7  # the eighth column of its first line


class HostWatch:
    """Sums over all levels measured since the last `reset`."""

    def __init__(self) -> None:
        self.load_before = os.getloadavg()[0]
        self.reset()

    def reset(self) -> None:
        self.window_s = self.cpu_s = self.lag_ms = self.busiest_share = 0.0
        self.switches = 0
        self.processes = 1
        self.clock_step_ns = 0
        self._ticks = self._stolen = 0

    @property
    def steal_share(self) -> float | None:
        """Of the host's processor time, what other guests took; None where the host does not say."""
        return self._stolen / self._ticks if self._ticks else None

    def add(self, parts: Sequence[HostFacts]) -> None:
        """What the other processes of one level say; this one only waited."""
        self.cpu_s += sum(part.cpu_s for part in parts)
        self.switches += sum(part.involuntary_switches for part in parts)
        self.lag_ms = max([self.lag_ms, *(part.loop_lag_max_ms for part in parts)])
        self.busiest_share = max([self.busiest_share, *(part.busiest_share or 0.0 for part in parts)])
        self.processes = max(self.processes, len(parts))

    def facts(self, tokens: int) -> HostFacts:
        """`tokens`: that came while it was measured."""
        return HostFacts(
            load_average_before=self.load_before,
            load_average_after=os.getloadavg()[0],
            cpu_s=self.cpu_s,
            window_s=self.window_s,
            involuntary_switches=self.switches,
            loop_lag_max_ms=self.lag_ms,
            uvloop=type(asyncio.get_running_loop()).__module__.startswith("uvloop"),
            cpu_ms_per_token=1e3 * self.cpu_s / tokens if tokens else None,
            busiest_share=self.busiest_share,
            steal_share=self.steal_share,
            clock_step_us=abs(self.clock_step_ns) / 1e3,
            processes=self.processes,
        )

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """No garbage collection while it measures: a full one stops every stream for a tenth of a second."""
        gc.collect()
        gc.freeze()
        gc.disable()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        ticks = processor_ticks()
        offset_ns = realtime_offset_ns()
        start = time.monotonic()
        try:
            yield
        finally:
            window_s = time.monotonic() - start
            after = resource.getrusage(resource.RUSAGE_SELF)
            cpu_s = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
            self.window_s += window_s
            self.cpu_s += cpu_s
            self.busiest_share = max(self.busiest_share, cpu_s / max(window_s, 1e-9))
            self.switches += after.ru_nivcsw - usage.ru_nivcsw
            step_ns = realtime_offset_ns() - offset_ns
            self.clock_step_ns = max(self.clock_step_ns, step_ns, key=abs)
            now = processor_ticks()
            if ticks is not None and now is not None:
                self._ticks += now[0] - ticks[0]
                self._stolen += now[1] - ticks[1]
            gc.enable()
            gc.unfreeze()


def processor_ticks(stat: Path = STAT) -> tuple[int, int] | None:
    """Of all processors since boot: all ticks and those stolen; None where the host does not say."""
    try:
        first = stat.read_text().splitlines()[0].split()
        # Guest time, behind the steal, is part of user time.
        numbers = [int(number) for number in first[1 : _STEAL + 2]]
    except (OSError, IndexError, ValueError):
        return None
    if first[0] != "cpu" or len(numbers) <= _STEAL:
        return None
    return sum(numbers), numbers[_STEAL]
