"""One level: streams that take one conversation after another. As soon as the last one has ended in a closed loop, and
not before it is due in an open one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

from autotune.domain.stop_rule import Decision
from autotune.domain.workload import LoadLevel
from workers.load.answer import Channel, read_answer
from workers.load.heartbeat import Heartbeat
from workers.load.host_watch import HostWatch
from workers.load.raw_streams import KeptRequest
from workers.load.recording import End, Recording
from workers.load.refusal import TooMuchToHold
from workers.load.requests import Conversation, Requests
from workers.load.schedule import due_times_s, staggered_s
from workers.load.spec import LoadSpec
from workers.load.tally import Tally, rough_pace_ms
from workers.load.transport import RecordingTransport

if TYPE_CHECKING:
    from autotune.domain.stopping import Stopping

MAX_BODY_BYTES = 2 * 1024**3  # all requests of a level are encoded before its first one is sent
LIMIT_S = 5.0  # of a request that only warms its connection


@dataclass(frozen=True, slots=True)
class Part:
    """Which of several processes this is: `number` of `of`. Conversations and streams go to each in turn."""

    number: int = 0
    of: int = 1

    def share(self, streams: int) -> int:
        """Of so many streams, those of this process."""
        return (streams - self.number + self.of - 1) // self.of


WHOLE = Part()


@dataclass(slots=True)
class _Planned:
    """A conversation in its place; its first request has this index."""

    number: int
    index: int
    turns: int
    due_s: float | None
    conversation: Conversation | None = None


@dataclass(slots=True)
class Prepared:
    """A level that can begin at once: connections open, bodies encoded."""

    name: str
    starts_s: list[float]
    waiting: Iterator[_Planned]
    ends_s: float
    stopping: Stopping | None = None
    decision: Decision | None = None
    kept: list[KeptRequest] = field(default_factory=list)


class LevelRunner:
    """Prepares and runs levels over one client. `tally` hears of every request as it ends."""

    def __init__(
        self,
        spec: LoadSpec,
        requests: Requests,
        client: httpx.AsyncClient,
        transport: RecordingTransport,
        tally: Tally,
        watch: HostWatch,
    ) -> None:
        self._spec = spec
        self._requests = requests
        self._client = client
        self._transport = transport
        self._tally = tally
        self._watch = watch

    async def prepare(
        self, name: str, level: LoadLevel, *, first: int = 0, part: Part = WHOLE, took_s: Sequence[float] = ()
    ) -> Prepared:
        """Draw, encode and connect. `first`: the number of the first conversation; `took_s`: what requests took.

        Raises LoadRefused, and OSError where this host has no more sockets.
        """
        plan = self._plan(name, level, first, part)
        # Of a closed loop with a duration, three times what it will take by the warm-up; more is encoded as it goes.
        ready = level.requests
        if level.duration_s is not None and level.rate_per_s is None:
            mean_s = math.fsum(took_s) / len(took_s) if took_s else level.duration_s
            ready = math.ceil(level.concurrency * (1 + 3 * level.duration_s / max(mean_s, 1e-3)))
        prepared: list[_Planned] = []
        held = 0
        for planned in itertools.islice(plan, min(ready, level.requests)):
            planned.conversation = await self._requests.conversation(name, planned.number)
            held += len(planned.conversation.body(0, ()))
            prepared.append(planned)
            if held > MAX_BODY_BYTES and level.duration_s is None:
                raise TooMuchToHold(
                    f"the requests of {name} take more than {MAX_BODY_BYTES >> 30} GiB; "
                    "lower its requests or prompt_tokens"
                )
            if held > MAX_BODY_BYTES:
                break
        starts_s = staggered_s(level, took_s)[part.number :: part.of]
        await self._connect(len(starts_s))
        closed = level.rate_per_s is None and level.trace_file is None
        ends_s = level.duration_s if closed and level.duration_s is not None else math.inf
        return Prepared(name, starts_s, itertools.chain(prepared, plan), ends_s, stopping_of(level))

    async def measure(
        self,
        prepared: Prepared,
        start_ns: int | None = None,
        *,
        count_from_ns: int | None = None,
        go_on: bool = False,
    ) -> list[KeptRequest]:
        """Every request that was sent, in the order of its index.

        Begins at `start_ns` on the monotonic clock, or at once. Times count from there, or from `count_from_ns`.
        `go_on`: requests of the level before count as this one's where a lost cause is looked for.
        """
        with Heartbeat(asyncio.get_running_loop()) as heartbeat, self._watch.measuring():
            begin_ns = time.monotonic_ns() if start_ns is None else start_ns
            async with self._tally.running(len(prepared.starts_s), go_on=go_on), asyncio.TaskGroup() as group:
                for start_s in prepared.starts_s:
                    group.create_task(self._stream(prepared, begin_ns, start_s))
        self._watch.lag_ms = max(self._watch.lag_ms, heartbeat.worst_ms())
        base_ns = begin_ns if count_from_ns is None else count_from_ns
        return [
            KeptRequest(
                level=prepared.name,
                index=kept.index,
                start_ns=base_ns,
                recording=kept.recording,
                user_lag_ms=heartbeat.worst_ms(kept.recording.send_ns, kept.recording.end_ns),
                due_s=kept.due_s,
                asked=kept.asked,
            )
            for kept in sorted(prepared.kept, key=lambda kept: kept.index)
        ]

    async def send(self, path: str, body: bytes) -> Recording:
        """One request on its own; the recording holds what came, and how it ended."""
        recording = Recording()
        await self._send(self._request(path, body, recording), recording)
        return recording

    def _plan(self, name: str, level: LoadLevel, first: int, part: Part) -> Iterator[_Planned]:
        due_s = due_times_s(level, self._spec.study_seed)
        index = first
        for number in itertools.count(first):
            place = number - first
            if index - first >= level.requests or (due_s is not None and place >= len(due_s)):
                return
            turns = min(self._requests.turns(name, number), level.requests - (index - first))
            if place % part.of == part.number:
                yield _Planned(number, index, turns, None if due_s is None else due_s[place])
            index += turns

    async def _connect(self, streams: int) -> None:
        url = httpx.URL(self._spec.base_url)
        try:
            await self._transport.open(url, streams)
        except httpx.ConnectError:  # a dead server shows in every request
            return
        if self._spec.use_connections:
            async with asyncio.TaskGroup() as group:
                for _ in range(streams):
                    group.create_task(self._touch())

    async def _touch(self) -> None:
        with contextlib.suppress(TimeoutError, httpx.TransportError):
            async with asyncio.timeout(LIMIT_S):
                await self._client.get(f"{self._spec.base_url}/v1/models")

    async def _stream(self, prepared: Prepared, start_ns: int, start_s: float) -> None:
        """Conversations are taken in order: the next one due is always with the stream that is free first."""
        await _until(start_ns + int(start_s * 1e9))
        for planned in prepared.waiting:
            if prepared.decision is not None and prepared.decision.stop:
                return
            if planned.due_s is not None:
                await _until(start_ns + int(planned.due_s * 1e9))
            if time.monotonic_ns() - start_ns >= prepared.ends_s * 1e9:
                return
            await self._converse(prepared, planned)

    async def _converse(self, prepared: Prepared, planned: _Planned) -> None:
        conversation, planned.conversation = planned.conversation, None
        if conversation is None:
            conversation = await self._requests.conversation(prepared.name, planned.number)
        answers: list[str] = []
        for turn in range(planned.turns):
            recording = Recording()
            request = self._request(conversation.path, conversation.body(turn, answers), recording)
            due_s = planned.due_s if turn == 0 else None
            prepared.kept.append(
                KeptRequest(
                    level=prepared.name,
                    index=planned.index + turn,
                    start_ns=0,
                    recording=recording,
                    due_s=due_s,
                    asked=conversation.asked(turn),
                )
            )
            with self._tally.counting(recording):
                await self._send(request, recording)
            if prepared.stopping is not None and (prepared.decision is None or not prepared.decision.stop):
                tokens = conversation.asked(turn) or self._spec.workload.output_tokens
                prepared.decision = prepared.stopping.add_pace(rough_pace_ms(recording, tokens))
            if turn + 1 < planned.turns:
                answers.append(_text(recording))

    def _request(self, path: str, body: bytes, recording: Recording) -> httpx.Request:
        url = httpx.URL(self._spec.base_url + path)
        return self._client.build_request("POST", url, content=body, extensions={"recording": recording})

    async def _send(self, request: httpx.Request, recording: Recording) -> None:
        with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):
            try:
                async with asyncio.timeout(self._spec.workload.request_timeout_s):
                    response = await self._client.send(request, stream=True)
                await response.aclose()
            except TimeoutError:
                recording.end = End.TIMEOUT


def stopping_of(level: LoadLevel) -> Stopping | None:
    """What ends a level with a precision. Made before it begins, and only there: scipy takes half a second."""
    if level.precision is None:
        return None
    from autotune.domain.stopping import Stopping, StopRule  # noqa: PLC0415  as said above

    return Stopping(StopRule(precision=level.precision, most_requests=level.requests), level.concurrency)


def _text(recording: Recording) -> str:
    """The answer without its reasoning, which is no part of the next turn."""
    answer = read_answer([read.data for read in recording.reads])
    return "".join(event.text for event in answer.content if event.channel is not Channel.REASONING)


async def _until(due_ns: int) -> None:
    """Timers are those of the loop, in whole ms: one that comes early is waited for again."""
    while True:
        left_ns = due_ns - time.monotonic_ns()
        if left_ns <= 0:
            return
        await asyncio.sleep(left_ns / 1e9)
