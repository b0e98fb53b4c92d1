"""What the transport writes down about one exchange; everything else is computed from it afterwards."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

# A realtime clock that moved more than this against the monotonic one was set, not measured badly.
CLOCK_STEP_NS = 50_000
_GOOD_SANDWICH_NS = 5_000


class Read(NamedTuple):
    """One read of the socket: the kernel's arrival time on the realtime clock, ours on the monotonic one, in ns.

    TCP merges what waits in the queue: the kernel's time is that of the last segment in `data`.
    """

    kernel_ns: int | None
    user_ns: int
    data: bytes


class End(StrEnum):
    """How an exchange ended."""

    OPEN = "open"
    COMPLETE = "complete"
    CONNECT = "connect"
    RESET = "reset"
    CUT = "cut"
    PROTOCOL = "protocol"
    TIMEOUT = "timeout"


def realtime_offset_ns() -> int:
    """Realtime minus monotonic clock. Repeated until no interruption fell between the two readings."""
    best = None
    offset = 0
    for _ in range(20):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best:
            best = after - before
            offset = real - (before + after) // 2
        if best < _GOOD_SANDWICH_NS:
            break
    return offset


@dataclass(slots=True)
class Recording:
    """Times are monotonic, in ns, except `Read.kernel_ns`.

    `send_ns` is taken right before the first byte is written, `sent_ns` after the last one, so that a slow
    upload is visible. Where no connection came about, `send_ns` is when it was first tried.
    """

    send_ns: int = 0
    sent_ns: int | None = None
    end_ns: int = 0
    offset_before_ns: int = 0
    offset_after_ns: int = 0
    reads: list[Read] = field(default_factory=list)
    end: End = End.OPEN

    @property
    def kernel_times(self) -> bool:
        """Whether every read has a kernel time that can be put on the monotonic clock."""
        if abs(self.offset_after_ns - self.offset_before_ns) > CLOCK_STEP_NS:
            return False
        return all(read.kernel_ns is not None for read in self.reads)

    def arrivals_ns(self) -> list[int]:
        """When each read arrived: the kernel's time where `kernel_times` holds, else ours. Never decreasing."""
        if not self.kernel_times:
            return [read.user_ns for read in self.reads]
        offset = (self.offset_before_ns + self.offset_after_ns) // 2
        found: list[int] = []
        latest = self.send_ns
        for read in self.reads:
            assert read.kernel_ns is not None
            latest = max(latest, min(read.kernel_ns - offset, read.user_ns))
            found.append(latest)
        return found
