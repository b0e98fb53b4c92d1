"""One run: streams that send one request after another. As soon as the last one has ended in a closed loop, and
not before it is due in an open one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import httpx

from autotune.domain.measurement import RequestSample
from autotune.domain.workload import LoadLevel
from workers.load.heartbeat import Heartbeat
from workers.load.prefix_cache import reset_prefix_cache
from workers.load.prompts import WARM_UP, PromptSource
from workers.load.recording import End, Recording
from workers.load.schedule import due_times_s
from workers.load.spec import HostFacts, LoadProgress, LoadResult, LoadSpec, LoadTally
from workers.load.stream import sample
from workers.load.tally import Tally
from workers.load.transport import RecordingTransport

MAX_BODY_BYTES = 2 * 1024**3  # all requests of a level are encoded before its first one is sent


class Exchange(NamedTuple):
    """A request, what is recorded of it, and when it is due: seconds from the start of its level, None at once."""

    request: httpx.Request
    recording: Recording
    due_s: float | None = None


class TooMuchToHold(ValueError):
    """The requests of one level do not fit into memory."""


MOST_PRIMINGS = 32  # more copies of attention than one deployment has


class LoadRun:
    """Runs a spec against its endpoint. `tell` hears of every phase before it begins, and how a phase is doing.

    Before each level the server is asked to empty its prefix cache, and the shared prefix, where there is one, is
    sent once on its own: what a level finds in the cache never depends on another one. The warm-up shares the
    prefix too.

    Raises TooMuchToHold and PromptsExhausted for a spec that can't be run, before anything is sent.
    """

    def __init__(self, spec: LoadSpec, tell: Callable[[LoadProgress | LoadTally], None]) -> None:
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
        self._tally = Tally(tell, spec.workload.output_tokens)
        self._url = httpx.URL(spec.base_url + self._prompts.path)
        self._window_s = self._cpu_s = self._lag_ms = 0.0
        self._switches = 0
        self._reset: str | None = None
        self._tells_cached = False

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
            headers=_headers(self._spec),
        ) as client:
            self._tell(LoadProgress(phase="warm_up"))
            await self._prime(client)
            warm_up = await self._level(client, WARM_UP, self._spec.warm_up)
            self._tells_cached = any(sample.cached_tokens for sample in warm_up)
            self._window_s = self._cpu_s = self._lag_ms = 0.0
            self._switches = 0
            levels: dict[str, tuple[RequestSample, ...]] = {}
            for level in self._spec.workload.levels:
                self._tell(LoadProgress(phase="load", level=level.name))
                self._reset = await reset_prefix_cache(client, self._spec.base_url)
                await self._prime(client)
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
        return LoadResult(warm_up=warm_up, levels=levels, host=host, cache_reset=self._reset)

    async def _prime(self, client: httpx.AsyncClient) -> None:
        """Once; and again until the server finds the prefix, where it says what it found.

        Each copy of attention has a cache of its own, and requests that come alone go to each in turn.
        """
        body = self._prompts.priming_body()
        if body is None:
            return
        for _ in range(MOST_PRIMINGS if self._tells_cached else 1):
            exchange = self._exchange(client, body)
            await self._send(client, exchange)
            found = sample(exchange.recording, 0, exchange.recording.send_ns, 0.0).cached_tokens
            if found is not None and found >= self._spec.workload.shared_prefix_tokens // 2:
                return

    async def _level(self, client: httpx.AsyncClient, name: str, level: LoadLevel) -> tuple[RequestSample, ...]:
        bodies = self._prompts.bodies(name, level.requests)
        due_s = due_times_s(level, self._spec.study_seed)
        exchanges = [
            self._exchange(client, body, None if due_s is None else due_s[index]) for index, body in enumerate(bodies)
        ]
        streams = min(level.concurrency, level.requests)
        with contextlib.suppress(httpx.ConnectError):  # a dead server shows in every request
            await self._transport.open(self._url, streams)
        waiting = iter(exchanges)
        with Heartbeat(asyncio.get_running_loop()) as heartbeat, self._undisturbed():
            start_ns = time.monotonic_ns()
            async with self._tally.running(streams), asyncio.TaskGroup() as group:
                for _ in range(streams):
                    group.create_task(self._stream(client, waiting, start_ns))
        self._lag_ms = max(self._lag_ms, heartbeat.worst_ms())
        return tuple(
            sample(
                exchange.recording,
                index,
                start_ns,
                heartbeat.worst_ms(exchange.recording.send_ns, exchange.recording.end_ns),
                exchange.due_s,
            )
            for index, exchange in enumerate(exchanges)
        )

    def _exchange(self, client: httpx.AsyncClient, body: bytes, due_s: float | None = None) -> Exchange:
        recording = Recording()
        request = client.build_request("POST", self._url, content=body, extensions={"recording": recording})
        return Exchange(request, recording, due_s)

    async def _stream(self, client: httpx.AsyncClient, waiting: Iterator[Exchange], start_ns: int) -> None:
        """Streams take requests in order, so that the next one due is always with the stream that is free first."""
        for exchange in waiting:
            if exchange.due_s is not None:
                await _until(start_ns + int(exchange.due_s * 1e9))
            with self._tally.counting(exchange.recording):
                await self._send(client, exchange)

    async def _send(self, client: httpx.AsyncClient, exchange: Exchange) -> None:
        # The recording holds what came, and how it ended.
        with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):
            try:
                async with asyncio.timeout(self._spec.workload.request_timeout_s):
                    response = await client.send(exchange.request, stream=True)
                await response.aclose()
            except TimeoutError:
                exchange.recording.end = End.TIMEOUT

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


async def _until(due_ns: int) -> None:
    """Timers are those of the loop, in whole ms: one that comes early is waited for again."""
    while True:
        left_ns = due_ns - time.monotonic_ns()
        if left_ns <= 0:
            return
        await asyncio.sleep(left_ns / 1e9)


def _headers(spec: LoadSpec) -> dict[str, str]:
    """The key itself stands in no file: only this process knows it."""
    headers = {"accept": "text/event-stream", "accept-encoding": "identity", "content-type": "application/json"}
    if spec.api_key_variable is not None:
        headers["authorization"] = f"Bearer {os.environ[spec.api_key_variable]}"
    return headers
