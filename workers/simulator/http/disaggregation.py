"""How a server of a deployment of prefill and decode takes requests: the glue between routes, engine and the desk.

Prefill computes a prompt and its first token, and holds the state. Decode asks for it by the request's room, waits
until it is there and its bytes are over, and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Protocol

from workers.simulator.http.connection import Exchange
from workers.simulator.http.engine import Engine, EngineDead, Receiver
from workers.simulator.http.refusal import Refusal
from workers.simulator.model.settings import Role
from workers.simulator.pd.desk import Desk, Handover, StateLost
from workers.simulator.pd.peer import Peer, PeerLost
from workers.simulator.pd.transfer import transfer_ms
from workers.simulator.serving.batching import Batcher, Sequence
from workers.simulator.start.booting import Booted

STATE, RELEASE = "/disaggregation/state", "/disaggregation/release"
_NO_ROOM = "Disaggregated request received without bootstrap room id."


class Intake(Protocol):
    """Takes the sequences of a request; the receiver gets their tokens."""

    def submit(self, handover: Handover | None, sequences: list[Sequence], receiver: Receiver) -> None:
        """Raises EngineDead, Refusal."""
        ...

    def drop(self, sequences: list[Sequence]) -> None:
        """The client has gone."""
        ...

    def paths(self) -> dict[str, dict[str, Callable[[Exchange], None]]]:
        """What the other servers of the deployment ask for."""
        ...


def intake_of(booted: Booted, engine: Engine, batcher: Batcher) -> Intake:
    """The one that fits the server's role."""
    match booted.cost.config.role:
        case Role.PREFILL:
            return PrefillIntake(engine, batcher)
        case Role.DECODE:
            return DecodeIntake(engine, booted)
        case _:
            return WholeIntake(engine)


class WholeIntake:
    """A server that does everything itself; a room means nothing to it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def submit(self, handover: Handover | None, sequences: list[Sequence], receiver: Receiver) -> None:  # noqa: ARG002
        self._engine.submit(sequences, receiver)

    def drop(self, sequences: list[Sequence]) -> None:
        self._engine.drop(sequences)

    def paths(self) -> dict[str, dict[str, Callable[[Exchange], None]]]:
        return {}


class PrefillIntake:
    """Answers with the first token, and keeps the state for decode."""

    def __init__(self, engine: Engine, batcher: Batcher) -> None:
        self._engine = engine
        self._desk = Desk(batcher.release)
        self._rooms: dict[Sequence, int] = {}
        self._work: set[asyncio.Task[None]] = set()

    def submit(self, handover: Handover | None, sequences: list[Sequence], receiver: Receiver) -> None:
        if handover is None:
            raise Refusal(_NO_ROOM)
        room = handover.room
        self._rooms |= dict.fromkeys(sequences, room)
        self._engine.submit(sequences, _Computed(receiver, sequences, lambda: self._computed(room, sequences)))

    def drop(self, sequences: list[Sequence]) -> None:
        for room in {self._rooms.pop(sequence) for sequence in sequences if sequence in self._rooms}:
            self._engine.drop(sequences)
            self._desk.lost(room)

    def paths(self) -> dict[str, dict[str, Callable[[Exchange], None]]]:
        return {STATE: {"POST": self._state}, RELEASE: {"POST": self._released}}

    def _computed(self, room: int, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._rooms.pop(sequence, None)
        self._desk.computed(room, sequences)

    def _state(self, exchange: Exchange) -> None:
        work = asyncio.ensure_future(self._tell(exchange, _room(exchange)))
        self._work.add(work)
        work.add_done_callback(self._work.discard)

        def gone() -> None:
            work.cancel()

        exchange.on_gone = gone

    async def _tell(self, exchange: Exchange, room: int) -> None:
        try:
            sequences = await self._desk.state(room)
        except StateLost as error:
            exchange.respond(410, str(error).encode())
        else:
            cached = [sequence.cached for sequence in sequences]
            exchange.respond(200, json.dumps({"cached": cached}).encode(), "application/json")

    def _released(self, exchange: Exchange) -> None:
        self._desk.release(_room(exchange))
        exchange.respond(200, b"")


class DecodeIntake:
    """Fetches the state of a request before the engine sees it."""

    def __init__(self, engine: Engine, booted: Booted) -> None:
        self._engine = engine
        self._booted = booted
        self._peers: dict[str, Peer] = {}
        self._work: dict[Sequence, asyncio.Task[None]] = {}
        self._releases: set[asyncio.Task[None]] = set()

    def submit(self, handover: Handover | None, sequences: list[Sequence], receiver: Receiver) -> None:
        if handover is None:
            raise Refusal(_NO_ROOM)
        if not self._engine.alive:
            raise EngineDead
        work = asyncio.ensure_future(self._fetch(handover, sequences, receiver))
        self._work |= dict.fromkeys(sequences, work)
        work.add_done_callback(lambda _: self._forget(sequences))

    def drop(self, sequences: list[Sequence]) -> None:
        for work in {self._work[sequence] for sequence in sequences if sequence in self._work}:
            work.cancel()
        self._engine.drop(sequences)

    def paths(self) -> dict[str, dict[str, Callable[[Exchange], None]]]:
        return {}

    async def _fetch(self, handover: Handover, sequences: list[Sequence], receiver: Receiver) -> None:
        url = f"http://{handover.host}:{handover.port}"
        peer = self._peers.setdefault(url, Peer(url))
        room = json.dumps({"bootstrap_room": handover.room}).encode()
        try:
            status, content = await peer.call("POST", STATE, room)
            if status != 200:
                raise PeerLost(content.decode(errors="replace"))
            for sequence, cached in zip(sequences, json.loads(content)["cached"], strict=True):
                sequence.cached = cached
                sequence.transferred = True
            tokens = sum(sequence.prompt_tokens for sequence in sequences)
            config = self._booted.cost.config
            await asyncio.sleep(transfer_ms(self._booted.cost.system, config, tokens) / 1e3)
            self._engine.submit(sequences, receiver)
        except (PeerLost, EngineDead):
            receiver.died()
        finally:
            self._release(peer, room)

    def _release(self, peer: Peer, room: bytes) -> None:
        """Prefill need not hold the state any longer. Where it is gone there is nothing to give back."""

        async def tell() -> None:
            with contextlib.suppress(PeerLost):
                await peer.call("POST", RELEASE, room)

        work = asyncio.ensure_future(tell())
        self._releases.add(work)
        work.add_done_callback(self._releases.discard)

    def _forget(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self._work.pop(sequence, None)


class _Computed:
    """A receiver that also tells when the last of its sequences has its first token."""

    def __init__(self, receiver: Receiver, sequences: list[Sequence], tell: Callable[[], None]) -> None:
        self._receiver = receiver
        self._open = set(sequences)
        self._tell: Callable[[], None] | None = tell

    def prepare(self, sequence: Sequence, tokens: int) -> None:
        self._receiver.prepare(sequence, tokens)
        self._open.discard(sequence)

    def flush(self, due_s: float) -> None:
        self._receiver.flush(due_s)
        if not self._open and (tell := self._tell) is not None:
            self._tell = None
            tell()

    def died(self) -> None:
        self._receiver.died()


def _room(exchange: Exchange) -> int:
    """Raises Refusal."""
    try:
        return int(json.loads(exchange.body)["bootstrap_room"])
    except (ValueError, KeyError, TypeError) as error:
        raise Refusal("bootstrap_room must be an integer") from error
