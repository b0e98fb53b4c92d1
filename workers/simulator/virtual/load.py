"""A load on virtual time: the requests, order and pauses of the real load process, without waiting."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush

from autotune.domain.measurement import RequestSample, TokenCount
from autotune.domain.stop_rule import Decision
from autotune.domain.workload import CachePolicy, LoadLevel
from workers.load.level import stopping_of
from workers.load.prompts import FOREIGN, WARM_UP
from workers.load.run import MOST_PRIMINGS
from workers.load.schedule import due_times_s, staggered_s
from workers.load.spec import LoadSpec
from workers.simulator.serving.batching import Sequence
from workers.simulator.virtual.deployment import Deployment
from workers.simulator.virtual.prompts import VirtualPrompts
from workers.simulator.virtual.server import Progress

# The client's fixed share, as measured with the load process and the server process on one idle machine.
SEND_S = 0.0003  # between two requests that could be sent at once
REQUEST_S = 0.0005  # from the first byte of a request to the engine's queue
EVENT_S = 0.0002  # from the end of a step to its event's arrival at the client
TURNAROUND_S = 0.0008  # from an answer's last event to the stream's next request
PAUSE_S = 0.05  # between two levels, in which the engine idles
TIMEOUT = "timeout"
REFUSED = "http_400"
STAMP = "virtual"


class LoadTooLong(Exception):
    """The load has not ended within its limit."""


class LoadCancelled(Exception):
    """The load was told to stop."""


class LoadStalled(Exception):
    """No word came on any open request for `idle_s`."""

    def __init__(self, idle_s: float) -> None:
        super().__init__(f"no token for {idle_s:g} s")
        self.idle_s = idle_s


@dataclass(slots=True)
class _Request:
    """One request that was sent, in s on the virtual clock."""

    index: int
    sequence: Sequence
    sent_s: float
    deadline_s: float
    first_s: float = math.inf
    last_s: float = 0.0
    events: int = 0
    open: bool = True


class VirtualLoad:
    """Drives one deployment as the load process does: warm-up, then each level with the cache that it asks for.

    `tells_cached`: the server's usage says how many tokens of a prompt it found in its cache. Once `cancelled`
    gives True, a run ends at its next step. Raises LoadRefused for a spec that can't be run; each run raises
    LoadTooLong when the clock passes `limit_s`, LoadStalled when nothing is heard of open requests for `patience_s`,
    LoadCancelled, and ServerDied.
    """

    def __init__(
        self,
        deployment: Deployment,
        spec: LoadSpec,
        cancelled: Callable[[], bool],
        *,
        tells_cached: bool = False,
        patience_s: float = math.inf,
    ) -> None:
        self._deployment = deployment
        self._spec = spec
        self._cancelled = cancelled
        self._tells_cached = tells_cached
        self._patience_s = patience_s
        self._finds_prefix = False
        self._took_s: tuple[float, ...] = ()
        self.stopped: dict[str, Decision] = {}  # why each level with a precision ended
        self._prompts = VirtualPrompts(spec, deployment.block_size, drafts=deployment.drafts)

    @property
    def now_s(self) -> float:
        return self._deployment.now_s

    def warm_up(self, limit_s: float = math.inf) -> tuple[RequestSample, ...]:
        """The load before the first level."""
        self._prime(limit_s, again=False)
        samples = self._run(WARM_UP, self._spec.warm_up, limit_s)
        self._finds_prefix = any(sample.cached_tokens for sample in samples)
        self._took_s = tuple(sample.e2e_ms / 1e3 for sample in samples if sample.e2e_ms is not None)
        return samples

    def level(self, level: LoadLevel, limit_s: float = math.inf) -> tuple[RequestSample, ...]:
        """Every request of the level, in the order of their numbers."""
        if level.cache is not CachePolicy.KEEP:
            self._deployment.reset_prefix_cache()
        if level.cache is CachePolicy.PRIMED:
            self._prime(limit_s, again=self._finds_prefix)
        elif level.cache is CachePolicy.FOREIGN:
            requests = self._spec.workload.warmup_requests
            foreign = LoadLevel(concurrency=min(level.concurrency, requests), requests=requests)
            self._run(FOREIGN + level.name, foreign, limit_s)
        return self._run(level.name, level, limit_s)

    def _run(self, name: str, level: LoadLevel, limit_s: float) -> tuple[RequestSample, ...]:
        running = self._level(level, lambda index: self._prompts.sequence(name, index))
        self._drive(running, limit_s)
        if running.decision is not None:
            self.stopped[name] = running.decision
        return running.samples

    def _prime(self, limit_s: float, *, again: bool) -> None:
        """As the load process does: once, or until the prefix is found."""
        alone = LoadLevel(concurrency=1, requests=1)
        for group in range(self._prompts.groups):
            for _ in range(MOST_PRIMINGS if again else 1):
                priming = self._prompts.priming(group)
                self._drive(self._level(alone, partial(_same, priming)), limit_s)
                if priming.cached >= self._spec.workload.shared_prefix_tokens // 2:
                    break

    def _level(self, level: LoadLevel, sequence: Callable[[int], Sequence]) -> _Level:
        timeout_s = self._spec.workload.request_timeout_s
        due_s = due_times_s(level, self._spec.study_seed)
        starts_s = staggered_s(level, self._took_s)
        return _Level(self._deployment, level, due_s, starts_s, timeout_s, sequence, self._tells_cached)

    def _drive(self, level: _Level, limit_s: float) -> None:
        while level.is_open:
            if self._cancelled():
                raise LoadCancelled("cancelled")
            level.advance(self._patience_s)
            if self._deployment.now_s > limit_s:
                raise LoadTooLong


def _same(sequence: Sequence, _: int) -> Sequence:
    return sequence


class _Level:
    """One level under way. `due_s` counts from its start, None stands for a closed loop; `starts_s` likewise, of each
    stream."""

    def __init__(
        self,
        deployment: Deployment,
        level: LoadLevel,
        due_s: list[float] | None,
        starts_s: list[float],
        timeout_s: float,
        sequence: Callable[[int], Sequence],
        tells_cached: bool,
    ) -> None:
        self._deployment = deployment
        self._level = level
        self._due_s = due_s
        self._timeout_s = timeout_s
        self._sequence = sequence
        self._tells_cached = tells_cached
        self._start_s = deployment.now_s + PAUSE_S
        self._free_s = [self._start_s + start_s for start_s in starts_s]  # of each stream, a heap as it is sorted
        self._ready_s = self._start_s  # one request is sent after another, never two at once
        self._by_sequence: dict[Sequence, _Request] = {}
        self._by_deadline: deque[_Request] = deque()
        self._last_word_s = -math.inf
        self._requests = level.requests if due_s is None else len(due_s)
        self._end_s = math.inf if due_s is not None or level.duration_s is None else self._start_s + level.duration_s
        self._samples: list[RequestSample | None] = [None] * self._requests
        self._sent = 0
        self._stopping = stopping_of(level)
        self.decision: Decision | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request is under way or still to be sent."""
        return bool(self._by_sequence) or self._next_send_s() < math.inf

    @property
    def samples(self) -> tuple[RequestSample, ...]:
        return tuple(sample for sample in self._samples if sample is not None)

    def advance(self, patience_s: float = math.inf) -> None:
        """Send the next request, or let the servers work until it comes. Raises LoadStalled."""
        deployment, send_s = self._deployment, self._next_send_s()
        arrival_s = send_s + REQUEST_S
        if deployment.idle or arrival_s <= deployment.now_s:
            self._send(send_s)
            return
        until_s = min(arrival_s, self._next_deadline_s(), self._heard_s() + patience_s)
        for progress in deployment.advance(until_s):
            self._book(progress)
        self._time_out()
        if deployment.now_s - self._heard_s() >= patience_s:
            raise LoadStalled(patience_s)

    def _heard_s(self) -> float:
        """The last word on any open request, or when the oldest of them was sent; never where none is open."""
        self._next_deadline_s()
        return max(self._last_word_s, self._by_deadline[0].sent_s) if self._by_deadline else math.inf

    def _next_send_s(self) -> float:
        enough = self.decision is not None and self.decision.stop
        if not self._free_s or self._sent == self._requests or enough:
            return math.inf
        due_s = self._start_s if self._due_s is None else self._start_s + self._due_s[self._sent]
        send_s = max(self._free_s[0], self._ready_s, due_s)
        return send_s if send_s < self._end_s else math.inf

    def _next_deadline_s(self) -> float:
        while self._by_deadline and not self._by_deadline[0].open:
            self._by_deadline.popleft()
        return self._by_deadline[0].deadline_s if self._by_deadline else math.inf

    def _send(self, at_s: float) -> None:
        index = self._sent
        self._sent += 1
        heappop(self._free_s)
        self._ready_s = at_s + SEND_S
        sequence = self._sequence(index)
        request = _Request(index, sequence, at_s, at_s + self._timeout_s)
        if sequence.prompt_tokens + sequence.max_tokens > self._deployment.max_model_len:
            self._fail(request, at_s + REQUEST_S + EVENT_S, REFUSED)
            return
        self._by_sequence[sequence] = request
        self._by_deadline.append(request)
        self._deployment.submit(sequence, at_s + REQUEST_S)

    def _book(self, progress: Progress) -> None:
        request = self._by_sequence.get(progress.sequence)
        if request is None:
            return
        request.first_s = min(request.first_s, progress.first_s)
        request.last_s = self._last_word_s = progress.last_s
        request.events += progress.events
        if progress.ended and progress.last_s + EVENT_S <= request.deadline_s:
            del self._by_sequence[progress.sequence]
            self._samples[request.index] = self._sample(request)
            self._free(request, request.last_s + EVENT_S)

    def _time_out(self) -> None:
        """Requests whose time has passed: their clients hang up."""
        while self._next_deadline_s() <= self._deployment.now_s + EVENT_S:
            request = self._by_deadline.popleft()
            del self._by_sequence[request.sequence]
            self._deployment.drop(request.sequence)
            self._fail(request, request.deadline_s, TIMEOUT)

    def _free(self, request: _Request, at_s: float) -> None:
        """The stream of an ended request turns to its next one."""
        request.open = False
        if self._stopping is not None and (self.decision is None or not self.decision.stop):
            sample = self._samples[request.index]
            self.decision = self._stopping.add_pace(None if sample is None else sample.tpot_ms)
        heappush(self._free_s, at_s + TURNAROUND_S)

    def _fail(self, request: _Request, at_s: float, error: str) -> None:
        self._samples[request.index] = RequestSample(
            index=request.index,
            t_send_s=request.sent_s - self._start_s,
            t_last_s=at_s - self._start_s,
            events=request.events,
            stamp=STAMP,
            schedule_lag_ms=self._schedule_lag_ms(request),
            error=error,
        )
        self._free(request, at_s)

    def _sample(self, request: _Request) -> RequestSample:
        sequence = request.sequence
        tokens, span_s = sequence.generated, request.last_s - request.first_s
        return RequestSample(
            index=request.index,
            t_send_s=request.sent_s - self._start_s,
            t_last_s=request.last_s + EVENT_S - self._start_s,
            ttft_ms=(request.first_s + EVENT_S - request.sent_s) * 1e3,
            tpot_ms=span_s * 1e3 / (tokens - 1) if tokens > 1 and request.events > 1 else None,
            e2e_ms=(request.last_s + EVENT_S - request.sent_s) * 1e3,
            prompt_tokens=sequence.prompt_tokens,
            completion_tokens=tokens,
            finish_reason="length",
            events=request.events,
            stamp=STAMP,
            cached_tokens=sequence.cached if self._tells_cached else None,
            decode_tpot_ms=span_s * 1e3 / (tokens - tokens / request.events) if request.events > 1 else None,
            counted_by=TokenCount.EVEN if request.events > 1 else None,
            schedule_lag_ms=self._schedule_lag_ms(request),
        )

    def _schedule_lag_ms(self, request: _Request) -> float | None:
        if self._due_s is None:
            return None
        return max(request.sent_s - self._start_s - self._due_s[request.index], 0.0) * 1e3
