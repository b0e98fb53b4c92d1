"""Closed loop: a fixed number of streams, each of which sends its next request as soon as one has ended."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Self

import httpx

from autotune.domain.measurement import RequestSample
from autotune.domain.workload import LoadLevel
from workers.load.prompts import WARM_UP, PromptSource
from workers.load.recording import End, Recording
from workers.load.spec import HostFacts, LoadProgress, LoadResult, LoadSpec
from workers.load.stream import sample
from workers.load.transport import RecordingTransport

MAX_BODY_BYTES = 2 * 1024**3  # all requests of a level are encoded before its first one is sent
HEARTBEAT_S = 0.01

Exchange = tuple[httpx.Request, Recording]


class TooMuchToHold(ValueError):
    """The requests of one level do not fit into memory."""


class Heartbeat:
    """How late the event loop comes to its timers: the only measure of our lag where the kernel gives no times."""

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


class ClosedLoop:
    """Runs a spec against its endpoint. `tell` hears of every phase before it begins.

    Raises TooMuchToHold and PromptsExhausted for a spec that can't be run, before anything is sent.
    """

    def __init__(self, spec: LoadSpec, tell: Callable[[LoadProgress], None]) -> None:
        token_bytes = len(f", {spec.prompt_token_high}")
        for level in (spec.warm_up, *spec.workload.levels):
            if level.requests * spec.workload.prompt_tokens * token_bytes > MAX_BODY_BYTES:
                raise TooMuchToHold(
                    f"the {level.requests} requests of {level.name} take more than {MAX_BODY_BYTES >> 30} GiB; "
                    "lower its requests or prompt_tokens"
                )
        self._spec = spec
        self._tell = tell
        self._prompts = PromptSource(spec)
        self._transport = RecordingTransport()
        self._url = httpx.URL(spec.base_url + self._prompts.path)
        self._window_s = self._cpu_s = self._lag_ms = 0.0
        self._switches = 0

    async def run(self) -> LoadResult:
        """Warm-up, then each level in order.

        Failed requests are data. Raises httpx.UnsupportedProtocol, and OSError where this host has no more sockets.
        """
        before = os.getloadavg()[0]
        # The environment's proxies would take the place of our transport, and time limits are ours alone.
        async with httpx.AsyncClient(
            transport=self._transport,
            timeout=httpx.Timeout(None),
            trust_env=False,
            headers={"accept": "text/event-stream", "accept-encoding": "identity", "content-type": "application/json"},
        ) as client:
            self._tell(LoadProgress(phase="warm_up"))
            warm_up = await self._level(client, WARM_UP, self._spec.warm_up)
            self._window_s = self._cpu_s = self._lag_ms = 0.0
            self._switches = 0
            levels: dict[str, tuple[RequestSample, ...]] = {}
            for level in self._spec.workload.levels:
                self._tell(LoadProgress(phase="load", level=level.name))
                levels[level.name] = await self._level(client, level.name, level)
        host = HostFacts(
            load_average_before=before,
            load_average_after=os.getloadavg()[0],
            cpu_s=self._cpu_s,
            window_s=self._window_s,
            involuntary_switches=self._switches,
            loop_lag_max_ms=self._lag_ms,
            uvloop=type(asyncio.get_running_loop()).__module__.startswith("uvloop"),
        )
        return LoadResult(warm_up=warm_up, levels=levels, host=host)

    async def _level(self, client: httpx.AsyncClient, name: str, level: LoadLevel) -> tuple[RequestSample, ...]:
        exchanges = list(self._exchanges(client, name, level.requests))
        streams = min(level.concurrency, level.requests)
        with contextlib.suppress(httpx.ConnectError):  # a dead server shows in every request
            await self._transport.open(self._url, streams)
        waiting = iter(exchanges)
        with Heartbeat(asyncio.get_running_loop()) as heartbeat, self._undisturbed():
            start_ns = time.monotonic_ns()
            async with asyncio.TaskGroup() as group:
                for _ in range(streams):
                    group.create_task(self._stream(client, waiting))
        self._lag_ms = max(self._lag_ms, heartbeat.worst_ms())
        return tuple(
            sample(recording, index, start_ns, heartbeat.worst_ms(recording.send_ns, recording.end_ns))
            for index, (_, recording) in enumerate(exchanges)
        )

    def _exchanges(self, client: httpx.AsyncClient, name: str, count: int) -> Iterator[Exchange]:
        for body in self._prompts.bodies(name, count):
            recording = Recording()
            extensions = {"recording": recording}
            yield client.build_request("POST", self._url, content=body, extensions=extensions), recording

    async def _stream(self, client: httpx.AsyncClient, waiting: Iterator[Exchange]) -> None:
        for request, recording in waiting:
            try:
                async with asyncio.timeout(self._spec.workload.request_timeout_s):
                    response = await client.send(request, stream=True)
                await response.aclose()
            except TimeoutError:
                recording.end = End.TIMEOUT
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                continue  # the recording holds what came, and how it ended

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """No garbage collection while it measures: a full one stops every stream for a tenth of a second."""
        gc.collect()
        gc.freeze()
        gc.disable()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        start = time.monotonic()
        try:
            yield
        finally:
            self._window_s += time.monotonic() - start
            after = resource.getrusage(resource.RUSAGE_SELF)
            self._cpu_s += after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
            self._switches += after.ru_nivcsw - usage.ru_nivcsw
            gc.enable()
            gc.unfreeze()
