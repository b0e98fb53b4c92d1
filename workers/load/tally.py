"""How the requests of a running level are doing, told while it runs, so that a lost cause need not be waited for."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator

from workers.load.recording import End, Recording
from workers.load.spec import LoadTally
from workers.load.stream import sample

TALLY_S = 0.5

_EVENT = b"data:"
_STATUS = slice(9, 12)  # of `HTTP/1.1 200 OK`


def rough_pace_ms(recording: Recording, tokens: int) -> float | None:
    """The time per token of a request that has just ended, without reading it: that takes 40 ms for 512 events.

    By the first read with an event, since heads may come long before, and by the tokens that were asked for.
    None for a request that failed or has no pace.
    """
    if tokens < 2 or not _answered(recording):
        return None
    first = next((read for read in recording.reads if _EVENT in read.data), None)
    if first is None or first is recording.reads[-1]:
        return None
    return (recording.reads[-1].user_ns - first.user_ns) / 1e6 / (tokens - 1)


class Tally:
    """Counts requests as they end; a few microseconds each, since it runs beside the measurement."""

    def __init__(self, tell: Callable[[LoadTally], None], output_tokens: int) -> None:
        self._tell = tell
        self._output_tokens = output_tokens
        self._streams = 1
        self._wave_ms: list[float] = []
        self._waves_ms: list[float] = []
        self._ended = 0
        self._failed = 0
        self._error: str | None = None
        self._open: dict[int, Recording] = {}
        self._last_word_ns = 0

    @contextlib.contextmanager
    def counting(self, recording: Recording) -> Iterator[None]:
        """Around the sending of one request."""
        self._open[id(recording)] = recording
        try:
            yield
        finally:
            del self._open[id(recording)]
            self.count(recording)

    def count(self, recording: Recording) -> None:
        """A request that has ended."""
        self._ended += 1
        if recording.reads:
            self._last_word_ns = max(self._last_word_ns, recording.reads[-1].user_ns)
        if not _answered(recording):
            self._failed += 1
            self._error = sample(recording, 0, recording.send_ns, 0.0).error
        elif (pace_ms := rough_pace_ms(recording, self._output_tokens)) is not None:
            self._pace(pace_ms)

    def _pace(self, pace_ms: float) -> None:
        self._wave_ms.append(pace_ms)
        if len(self._wave_ms) == self._streams:
            self._waves_ms.append(round(math.fsum(self._wave_ms) / self._streams, 4))
            self._wave_ms.clear()

    @contextlib.asynccontextmanager
    async def running(self, streams: int = 1, *, go_on: bool = False) -> AsyncIterator[None]:
        """Around a level of so many streams: tells every half second, and once at its end.

        `go_on`: it is a part of the level before, whose requests count too.
        """
        if not go_on:
            self._ended = self._failed = 0
            self._error = None
        self._streams = streams
        self._wave_ms, self._waves_ms = [], []
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()
            self._tell(self.now())

    def now(self) -> LoadTally:
        """As it stands."""
        sent = [recording.send_ns for recording in self._open.values() if recording.send_ns]
        idle_s = None
        if sent:
            words = (recording.reads[-1].user_ns for recording in self._open.values() if recording.reads)
            # Requests that come while a server stands still are no sign of life.
            since_ns = max(self._last_word_ns, min(sent), max(words, default=0))
            idle_s = round(max(time.monotonic_ns() - since_ns, 0) / 1e9, 3)
        waves_ms = tuple(self._waves_ms)
        return LoadTally(ended=self._ended, failed=self._failed, error=self._error, idle_s=idle_s, waves_ms=waves_ms)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TALLY_S)
            self._tell(self.now())


def _answered(recording: Recording) -> bool:
    """Whether it ended in order and with a good status; the status may come in several reads."""
    head = b"".join(read.data for read in recording.reads[: _STATUS.stop])
    return recording.end is End.COMPLETE and head[_STATUS] == b"200"
