"""The engine loop: runs the batcher on the wall clock and hands tokens to the streams.

Steps lie on an absolute schedule: the end of a step is the end of the one before plus the model's time, whatever
the operating system's timers did. A late step is followed at once by the next, so that the mean stays true. The
bytes of a step are made before its end is due and go out one stream after the other, with no task in between. The
kernel takes some microseconds for each: the row of them is centred on the end of the step, so that its tokens are on
time on average, and none is earlier than MOST_AHEAD_S.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from workers.simulator.http.alarm import Alarm
from workers.simulator.http.metrics import Metrics
from workers.simulator.serving.batching import Batcher, Output
from workers.simulator.serving.sequence import Sequence

MOST_LAG_S = 1.0  # beyond it the process was stopped: start the schedule anew instead of replaying the pause
AWAKE_S = 0.0003  # awake this long before a step is due: what the kernel needs to wake us, on a busy host too
MOST_AHEAD_S = 0.0005
MOST_EARLY_S = 0.002  # no core is held longer than this, however long the bytes of a step take


class EngineDead(Exception):
    """The engine core has ended; the request gets no more tokens."""


class Receiver(Protocol):
    """Where the tokens of one sequence go. No method may raise, or take longer than a few microseconds."""

    def prepare(self, sequence: Sequence, tokens: int) -> None:
        """So many tokens come next: make their bytes. `sequence.finished` says that they are the last."""
        ...

    def flush(self, due_s: float) -> None:
        """The tokens are due: send what was prepared. Also called when nothing was."""
        ...

    def died(self) -> None:
        """No more tokens: the engine has ended."""
        ...


@dataclass(slots=True, eq=False)
class _Stream:
    receiver: Receiver
    first_s: float | None = None
    last_s: float = 0.0


class Engine:
    """Owns the batcher. All methods belong to the event loop's thread. After `freeze_after` steps it hangs."""

    def __init__(
        self, batcher: Batcher, metrics: Metrics, freeze_after: int | None = None, most_lag_s: float = MOST_LAG_S
    ) -> None:
        self._batcher = batcher
        self._metrics = metrics
        self._streams: dict[Sequence, _Stream] = {}
        self._transferred: set[Sequence] = set()  # whose first token, computed elsewhere, is not sent yet
        self._wake = asyncio.Event()
        self._idle_until = 0.0
        self._preparing_s = 0.0
        self._sending_s = 0.0
        self._frozen = freeze_after == 0
        self._steps_left = freeze_after
        self._most_lag_s = most_lag_s
        self.alive = True

    def submit(self, sequences: Iterable[Sequence], receiver: Receiver) -> None:
        """Queue the sequences of a request. Raises EngineDead."""
        if not self.alive:
            raise EngineDead
        now = time.monotonic()
        for sequence in sequences:
            sequence.arrived_s = now
            self._streams[sequence] = _Stream(receiver)
            if sequence.transferred:
                self._transferred.add(sequence)
            self._batcher.add(sequence)
            self._metrics.prompt_tokens.inc(sequence.prompt_tokens)
        if not self._wake.is_set():
            self._idle_until = now
            self._wake.set()

    def drop(self, sequences: Iterable[Sequence]) -> None:
        """The client has gone, or has everything."""
        for sequence in sequences:
            self._transferred.discard(sequence)
            if self._streams.pop(sequence, None) is not None:
                self._batcher.remove(sequence)

    def reset_prefix_cache(self) -> bool:
        """Forget the prompts that the cache holds; False, and nothing happens, while sequences use it."""
        return self._batcher.reset_prefix_cache()

    def freeze(self) -> None:
        """Hang: requests are taken, connections stay open, no token comes any more. Only `stop` ends it."""
        self._frozen = True

    def stop(self) -> None:
        """No more tokens for anybody."""
        self.alive = False
        streams, self._streams = self._streams, {}
        for receiver in {id(stream.receiver): stream.receiver for stream in streams.values()}.values():
            receiver.died()
        self._wake.set()

    async def run(self) -> None:
        """Serve until stopped.

        Raises DeviceOutOfMemory when the load needs more than the die has. However it ends, the streams hear of it.
        """
        alarm = Alarm(asyncio.get_running_loop())
        due = time.monotonic()
        try:
            while self.alive:
                step = None if self._frozen else self._batcher.plan()
                if self._transferred:
                    self._arrive(due)
                self._metrics.look(self._batcher)
                if step is None:
                    self._wake.clear()
                    await self._wake.wait()
                    due = self._idle_until
                    continue
                due += step.duration_ms / 1e3
                start = due - min(self._sending_s / 2, MOST_AHEAD_S)
                await alarm.until(start - min(AWAKE_S + self._preparing_s, MOST_EARLY_S))
                if self._frozen or not self.alive:
                    continue
                began = time.monotonic()
                outputs = self._batcher.finish(step)
                streams = [self._prepare(output) for output in outputs]
                self._preparing_s = time.monotonic() - began
                while (now := time.monotonic()) < start:
                    pass
                if now - due > self._most_lag_s:
                    due = now
                for stream in streams:
                    if stream is not None:
                        stream.receiver.flush(due)
                self._sending_s = time.monotonic() - now
                self._book(outputs, streams, due)
                self._count_down()
        finally:
            self.stop()
            alarm.close()

    def _arrive(self, due: float) -> None:
        """A first token that another server computed is there as soon as its sequence runs."""
        outputs = [Output(sequence, 1) for sequence in self._transferred if sequence.generated]
        self._transferred.difference_update(output.sequence for output in outputs)
        streams = [self._prepare(output) for output in outputs]
        for stream in streams:
            if stream is not None:
                stream.receiver.flush(due)
        self._book(outputs, streams, due)

    def _count_down(self) -> None:
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left <= 0:
                self.freeze()

    def _prepare(self, output: Output) -> _Stream | None:
        sequence = output.sequence
        stream = self._streams.get(sequence)
        if stream is None:
            return None
        if sequence.finished:
            del self._streams[sequence]
        stream.receiver.prepare(sequence, output.tokens)
        return stream

    def _book(self, outputs: list[Output], streams: list[_Stream | None], due: float) -> None:
        """Metrics count on the schedule, not on the operating system's delays."""
        metrics = self._metrics
        for output, stream in zip(outputs, streams, strict=True):
            if stream is None:
                continue
            sequence = output.sequence
            metrics.generation_tokens.inc(output.tokens)
            if output.drafted:
                metrics.drafted(output.drafted, output.accepted)
            if stream.first_s is None:
                stream.first_s = due
                metrics.ttft.observe(due - sequence.arrived_s)
            else:
                metrics.itl.observe(due - stream.last_s)
            stream.last_s = due
            if sequence.finished:
                metrics.success.inc()
                metrics.e2e.observe(due - sequence.arrived_s)
                if sequence.generated > 1:
                    metrics.tpot.observe((due - stream.first_s) / (sequence.generated - 1))
