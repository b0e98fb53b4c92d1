"""The engine loop: runs the batcher on the wall clock and hands tokens to the streams.

Steps lie on an absolute schedule: the end of a step is the end of the one before plus the model's time, whatever
the operating system's timers did. A late step is followed at once by the next, so that the mean stays true.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from workers.simulator.faults import DeviceOutOfMemory
from workers.simulator.http.metrics import Metrics
from workers.simulator.serving.batching import Batcher, Output, Sequence

MOST_LAG_S = 1.0  # beyond it the process was stopped: start the schedule anew instead of replaying the pause
EARLY_S = 0.0002  # the loop's timers are no finer


class EngineDead(Exception):
    """The engine core has ended; the request gets no more tokens."""


@dataclass(slots=True, eq=False)
class Stream:
    """One request's tokens on their way to its client. The queue holds counts; None says that the engine died."""

    sequence: Sequence
    queue: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    first_s: float | None = None
    last_s: float = 0.0

    async def next_tokens(self) -> int:
        """How many tokens came next. Raises EngineDead."""
        tokens = await self.queue.get()
        if tokens is None:
            raise EngineDead
        return tokens


class Engine:
    """Owns the batcher. All methods belong to the event loop's thread."""

    def __init__(self, batcher: Batcher, metrics: Metrics) -> None:
        self._batcher = batcher
        self._metrics = metrics
        self._streams: dict[Sequence, Stream] = {}
        self._wake = asyncio.Event()
        self.alive = True

    def submit(self, sequence: Sequence) -> Stream:
        """Queue a request. Raises EngineDead."""
        if not self.alive:
            raise EngineDead
        sequence.arrived_s = time.monotonic()
        stream = Stream(sequence)
        self._streams[sequence] = stream
        self._batcher.add(sequence)
        self._metrics.prompt_tokens.inc(sequence.prompt_tokens)
        self._wake.set()
        return stream

    def drop(self, stream: Stream) -> None:
        """The client has gone, or has everything."""
        if self._streams.pop(stream.sequence, None) is not None:
            self._batcher.remove(stream.sequence)

    def stop(self) -> None:
        """No more tokens for anybody."""
        self.alive = False
        for stream in self._streams.values():
            stream.queue.put_nowait(None)
        self._streams.clear()
        self._wake.set()

    async def run(self) -> None:
        """Serve until stopped. Raises DeviceOutOfMemory when the load needs more than the die has."""
        due = time.monotonic()
        try:
            while self.alive:
                step = self._batcher.plan()
                self._gauge()
                if step is None:
                    self._wake.clear()
                    await self._wake.wait()
                    due = time.monotonic()
                    continue
                due += step.duration_ms / 1e3
                await _sleep_until(due)
                if time.monotonic() - due > MOST_LAG_S:
                    due = time.monotonic()
                for output in self._batcher.finish(step):
                    self._deliver(output, due)
        except DeviceOutOfMemory:
            self.stop()
            raise

    def _gauge(self) -> None:
        self._metrics.running.set(len(self._batcher.running))
        self._metrics.waiting.set(len(self._batcher.waiting))
        self._metrics.kv_usage.set(self._batcher.kv_usage())

    def _deliver(self, output: Output, now_s: float) -> None:
        sequence, metrics = output.sequence, self._metrics
        stream = self._streams.get(sequence)
        if stream is None:
            return
        metrics.generation_tokens.inc(output.tokens)
        if output.drafted:
            metrics.drafted(output.drafted, output.accepted)
        if stream.first_s is None:
            stream.first_s = now_s
            metrics.ttft.observe(now_s - sequence.arrived_s)
        else:
            metrics.itl.observe(now_s - stream.last_s)
        stream.last_s = now_s
        if sequence.finished:
            metrics.success.inc()
            metrics.e2e.observe(now_s - sequence.arrived_s)
            if sequence.generated > 1:
                metrics.tpot.observe((now_s - stream.first_s) / (sequence.generated - 1))
            del self._streams[sequence]
        stream.queue.put_nowait(output.tokens)


async def _sleep_until(due: float) -> None:
    left = due - time.monotonic()
    if left <= EARLY_S:
        await asyncio.sleep(0)  # let streams send even when the schedule is behind
        return
    while left > EARLY_S:
        await asyncio.sleep(left)
        left = due - time.monotonic()
