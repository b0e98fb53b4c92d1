"""One run: the warm-up, then level after level, each with the cache that it asks for."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.domain.measurement import RequestSample, TokenCount
from autotune.domain.server_truth import ServerTruth
from autotune.domain.stop_rule import Decision
from autotune.domain.workload import CachePolicy, LoadLevel
from workers.load.endpoint import client_of, requests_of
from workers.load.host_watch import HostWatch
from workers.load.level import MAX_BODY_BYTES, LevelRunner
from workers.load.prefix_cache import reset_prefix_cache
from workers.load.prompts import FOREIGN, WARM_UP, PromptSource
from workers.load.raw_streams import KeptRequest, StreamsWriter
from workers.load.refusal import TooMuchToHold
from workers.load.schedule import due_times_s
from workers.load.server_metrics import ServerWatch
from workers.load.shards import Shards
from workers.load.spec import (
    EVENTS_OF_A_PROCESS,
    STREAMS_OF_A_PROCESS,
    LoadProgress,
    LoadResult,
    LoadSpec,
    LoadTally,
)
from workers.load.stream import sample
from workers.load.tally import Tally
from workers.load.transport import RecordingTransport

MOST_PRIMINGS = 32  # more copies of attention than one deployment has
SURE_TO_DIFFER = 2**60  # so many possible prompts that none is ever drawn twice, whichever process draws it
_REFUSED = frozenset({"http_400", "http_404", "http_422"})

Tell = Callable[[LoadProgress | LoadTally], None]


class LoadRun:
    """Runs a spec against its endpoint. `tell` hears of every phase before it begins, and how a phase is doing.

    Before each level the cache is brought to what the level asks for: emptied where the server can do that, and the
    shared prefixes, where there are any, are sent once on their own. The warm-up shares the prefixes too. `streams`
    gets every request but those that only bring a shared prefix; where several processes send a level, each
    leaves a file of its own in `folder`.

    Raises LoadRefused for a spec that can't be run, before anything is sent.
    """

    def __init__(
        self, spec: LoadSpec, tell: Tell, streams: StreamsWriter | None = None, folder: Path | None = None
    ) -> None:
        token_bytes = len(f", {spec.prompt_token_high}")
        for level in (spec.warm_up, *spec.workload.levels):
            due_s = due_times_s(level, spec.study_seed)
            requests = level.requests if due_s is None else len(due_s)
            bounded = due_s is not None or level.duration_s is None
            if bounded and requests * spec.workload.prompt_tokens * token_bytes > MAX_BODY_BYTES:
                raise TooMuchToHold(
                    f"the {requests} requests of {level.name} take more than {MAX_BODY_BYTES >> 30} GiB; "
                    "lower its requests or prompt_tokens"
                )
        self._spec = spec
        self._tell = tell
        self._streams = streams
        self._folder = folder
        self._transport = RecordingTransport(ca_file=spec.ca_file, kernel_stamps=spec.kernel_stamps)
        self._client = client_of(spec, self._transport)
        self._requests = requests_of(spec, self._client)
        self._watch = HostWatch()
        self._stopped: dict[str, Decision] = {}
        self._tally = Tally(tell, spec.workload.output_tokens)
        self._runner = self._with(self._tally)
        self._reset: str | None = None
        self._tells_cached = False
        self._took_s: Sequence[float] = ()
        self._events_per_s = 0.0

    async def run(self) -> LoadResult:
        """Warm-up, then each level in order.

        Failed requests are data. Raises LoadRefused for what only shows now (a certificate, a tokenizer, a process that
        dies), httpx.UnsupportedProtocol, and OSError where this host has no more sockets.
        """
        async with self._client:
            self._tell(LoadProgress(phase="warm_up"))
            await self._prime()
            warm_up = await self._warm_up()
            self._tells_cached = any(sample.cached_tokens for sample in warm_up)
            self._watch.reset()
            levels: dict[str, tuple[RequestSample, ...]] = {}
            told: dict[str, dict[str, ServerTruth]] = {}
            watch = ServerWatch(self._client, self._spec.servers)
            for level in self._spec.workload.levels:
                self._tell(LoadProgress(phase="load", level=level.name))
                await self._prepare_cache(level)
                await watch.begin()
                levels[level.name] = await self._level(level)
                told[level.name] = await watch.end(sum(one.error is None for one in levels[level.name]))
        tokens = sum(one.completion_tokens or 0 for samples in levels.values() for one in samples)
        return LoadResult(
            warm_up=warm_up,
            levels=levels,
            host=self._watch.facts(tokens),
            cache_reset=self._reset,
            continuous_usage=self._requests.continuous,
            server=told,
            stopped=self._stopped,
        )

    # --- what comes before a level ----------------------------------------------------------

    async def _warm_up(self) -> tuple[RequestSample, ...]:
        """Its first request goes alone and shows whether the server tells the usage with every event."""
        level = self._spec.warm_up
        alone = LoadLevel(concurrency=1, requests=1)
        # A server that refuses what was only tried is no failing server.
        quiet = Tally(lambda told: self._tell(_without_failures(told)), self._spec.workload.output_tokens)
        trying = self._with(quiet)
        self._requests.continuous = True
        kept = await trying.measure(await trying.prepare(WARM_UP, alone))
        first = kept[0].sample()
        self._requests.continuous = first.counted_by is TokenCount.USAGE
        begin_ns = kept[0].start_ns
        if first.error in _REFUSED:
            prepared = await self._runner.prepare(WARM_UP, alone)
            kept = await self._runner.measure(prepared, count_from_ns=begin_ns)
        else:
            self._tally.count(kept[0].recording)
            self._tell(self._tally.now())
        self._keep(kept)
        if level.requests > 1:
            rest = level.model_copy(update={"requests": level.requests - 1})
            prepared = await self._runner.prepare(WARM_UP, rest, first=1)
            more = await self._runner.measure(prepared, count_from_ns=begin_ns, go_on=True)
            self._keep(more)
            kept += more
        samples = tuple(one.sample() for one in kept)
        self._learn_pace(samples)
        return samples

    def _learn_pace(self, samples: Sequence[RequestSample]) -> None:
        good = [one for one in samples if one.e2e_ms is not None]
        self._took_s = [one.e2e_ms / 1e3 for one in good if one.e2e_ms is not None]
        if self._took_s:
            self._events_per_s = sum(one.events for one in good) / math.fsum(self._took_s)

    async def _prepare_cache(self, level: LoadLevel) -> None:
        if level.cache is CachePolicy.KEEP:
            return
        self._reset = await reset_prefix_cache(self._client, self._spec.base_url)
        if level.cache is CachePolicy.PRIMED:
            await self._prime()
        elif level.cache is CachePolicy.FOREIGN:
            self._keep(await self._runner.measure(await self._runner.prepare(*self._foreign(level))))

    def _foreign(self, level: LoadLevel) -> tuple[str, LoadLevel]:
        requests = self._spec.workload.warmup_requests
        return FOREIGN + level.name, LoadLevel(concurrency=min(level.concurrency, requests), requests=requests)

    async def _prime(self) -> None:
        """Once; and again until the server finds the prefix, where it says what it found.

        Each copy of attention has a cache of its own, and requests that come alone go to each in turn.
        """
        for priming in self._requests.primings():
            for _ in range(MOST_PRIMINGS if self._tells_cached else 1):
                recording = await self._runner.send(*priming)
                found = sample(recording, 0, recording.send_ns).cached_tokens
                if found is not None and found >= self._spec.workload.shared_prefix_tokens // 2:
                    break

    # --- the level itself -------------------------------------------------------------------

    async def _level(self, level: LoadLevel) -> tuple[RequestSample, ...]:
        processes = self._processes(level)
        if processes == 1:
            prepared = await self._runner.prepare(level.name, level, took_s=self._took_s)
            kept = await self._runner.measure(prepared)
            self._keep(kept)
            if prepared.decision is not None:
                self._stopped[level.name] = prepared.decision
            return tuple(one.sample() for one in kept)
        shards = Shards(self._spec, level, processes, self._requests.continuous, self._took_s, self._streams_folder)
        with self._watch.measuring():
            samples, facts = await shards.run(self._tell)
        self._watch.add(facts)
        return samples

    def _processes(self, level: LoadLevel) -> int:
        """How many send a level; one where prompts are so few that each has to know all others, or that may stop."""
        streams = min(level.concurrency, level.requests)
        if level.precision is not None:
            return 1
        if isinstance(self._requests, PromptSource) and self._requests.possible < SURE_TO_DIFFER:
            return 1
        if self._spec.processes is not None:
            return min(self._spec.processes, streams)
        wanted = max(streams / STREAMS_OF_A_PROCESS, streams * self._events_per_s / EVENTS_OF_A_PROCESS)
        return max(1, min(math.ceil(wanted), len(os.sched_getaffinity(0)) // 2, streams))

    @property
    def _streams_folder(self) -> Path | None:
        return self._folder if self._streams is not None else None

    def _keep(self, kept: Sequence[KeptRequest]) -> None:
        if self._streams is not None:
            for one in kept:
                self._streams.add(one)

    def _with(self, tally: Tally) -> LevelRunner:
        return LevelRunner(self._spec, self._requests, self._client, self._transport, tally, self._watch)


def _without_failures(tally: LoadTally) -> LoadTally:
    return tally.model_copy(update={"failed": 0, "error": None})
