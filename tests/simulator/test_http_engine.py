"""What the engine loop promises its streams, without a socket."""

from __future__ import annotations

import asyncio
import json
import math
import time
from itertools import pairwise
from typing import Any

import pytest

from tests.simulator.scheduling import batcher_of
from workers.simulator.http.alarm import Alarm
from workers.simulator.http.answers import StreamedAnswer, Wording
from workers.simulator.http.connection import Connection, Exchange
from workers.simulator.http.engine import MOST_AHEAD_S, Engine, EngineDead
from workers.simulator.http.metrics import Metrics
from workers.simulator.http.openai_requests import parse_completion
from workers.simulator.serving.sequence import Sequence
from workers.simulator.start.booting import Family


class Wire(asyncio.Transport):
    """Takes what is written; `blocked` as long as nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered here."""

    def resume_reading(self) -> None:
        """Nothing was paused."""

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


class Receiver:
    """Notes what an engine hands out: the due time of each token, and its death. `reached`: so many tokens came."""

    def __init__(self, awaited: int = 1) -> None:
        self.awaited = awaited
        self.reached = asyncio.Event()
        self.tokens = 0
        self.due: list[float] = []
        self.early = 0
        self.ended = asyncio.Event()
        self.dead = False

    def prepare(self, sequence: Sequence, tokens: int) -> None:
        self.tokens += tokens
        if self.tokens >= self.awaited:
            self.reached.set()
        if sequence.finished:
            self.ended.set()

    def flush(self, due_s: float) -> None:
        self.early += time.monotonic() < due_s - MOST_AHEAD_S
        self.due.append(due_s)

    def died(self) -> None:
        self.dead = True
        self.ended.set()


def engine_of(freeze_after: int | None = None, **changes: Any) -> Engine:
    return Engine(batcher_of(**changes), Metrics("m", 0), freeze_after, most_lag_s=math.inf)


def sequence(output: int, prompt: int = 16) -> Sequence:
    return Sequence(prompt_tokens=prompt, max_tokens=output, seed=1)


async def stopped(engine: Engine, work: asyncio.Task[None]) -> None:
    engine.stop()
    await work


def opened() -> tuple[Connection, Wire, list[Exchange]]:
    exchanges: list[Exchange] = []
    connection, wire = Connection(exchanges.append, set()), Wire()
    connection.connection_made(wire)
    connection.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    return connection, wire, exchanges


def texts(wire: Wire) -> list[str]:
    lines = b"".join(wire.written).decode().split("\r\n")
    events = [json.loads(line.strip().removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return [choice["text"] for event in events for choice in event["choices"]]


def test_an_alarm_never_rings_early() -> None:
    async def run() -> list[float]:
        alarm = Alarm(asyncio.get_running_loop())
        late = []
        for wait_s in (-1.0, 0.0, 0.00002, 0.0007, 0.003):
            at = time.monotonic() + wait_s
            await alarm.until(at)
            late.append(time.monotonic() - at)
        alarm.close()
        return late

    assert min(asyncio.run(run())) >= 0


def test_tokens_come_on_the_schedule_of_the_steps_alone() -> None:
    """A delay of the process moves no due time: the schedule is that of another engine which met none."""

    async def run(delay_s: float) -> tuple[Receiver, list[float]]:
        engine, receiver = engine_of(), Receiver()
        work = asyncio.create_task(engine.run())
        engine.submit([sequence(12)], receiver)
        await asyncio.sleep(0.03)
        time.sleep(delay_s)  # noqa: ASYNC251 - the process itself is held up
        await receiver.ended.wait()
        await asyncio.sleep(0)
        await stopped(engine, work)
        return receiver, [later - sooner for sooner, later in pairwise(receiver.due)]

    (first, undisturbed), (second, delayed) = asyncio.run(run(0)), asyncio.run(run(0.1))
    assert first.tokens == second.tokens == 12
    assert first.early == second.early == 0
    assert delayed == pytest.approx(undisturbed, abs=1e-6)


def test_a_frozen_engine_takes_requests_and_hands_out_nothing() -> None:
    async def run() -> tuple[int, bool]:
        engine, receiver = engine_of(freeze_after=3), Receiver(3)
        work = asyncio.create_task(engine.run())
        engine.submit([sequence(50)], receiver)
        await receiver.reached.wait()
        late = Receiver()
        engine.submit([sequence(5)], late)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert engine.alive
        assert not receiver.dead
        await stopped(engine, work)
        assert receiver.dead
        return receiver.tokens, late.dead

    assert asyncio.run(run()) == (3, True)


def test_a_stopped_engine_takes_nothing() -> None:
    async def run() -> None:
        engine = engine_of()
        await stopped(engine, asyncio.create_task(engine.run()))
        with pytest.raises(EngineDead):
            engine.submit([sequence(5)], Receiver())

    asyncio.run(run())


def test_streams_hear_of_an_engine_that_fails() -> None:
    async def run() -> Receiver:
        batcher = batcher_of()
        engine, receiver = Engine(batcher, Metrics("m", 0)), Receiver()
        engine.submit([sequence(5)], receiver)
        batcher.ranks = ()  # nothing can be planned any more
        with pytest.raises(ZeroDivisionError):
            await engine.run()
        return receiver

    assert asyncio.run(run()).dead


def test_tokens_gather_while_the_client_does_not_read() -> None:
    async def run() -> list[str]:
        connection, wire, (exchange,) = opened()
        asked = parse_completion(b'{"prompt": [1, 2], "max_tokens": 9, "stream": true}', 100)
        sequences = asked.sequences(16)
        answer = StreamedAnswer(exchange, Wording(asked, sequences, "m", 1, cached=False), sequences, b"{}", None)

        def tokens(count: int) -> None:
            for _ in range(count):
                sequences[0].generated += 1
                answer.prepare(sequences[0], 1)
                answer.flush(0.0)

        tokens(2)
        connection.pause_writing()
        written = len(wire.written)
        tokens(4)
        assert len(wire.written) == written
        connection.resume_writing()
        tokens(1)
        connection.pause_writing()
        tokens(2)
        assert not b"".join(wire.written).endswith(b"0\r\n\r\n")
        connection.resume_writing()
        assert b"".join(wire.written).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        return texts(wire)

    assert asyncio.run(run()) == [" token"] * 2 + [" token" * 4, " token", " token" * 2]


def test_a_client_that_goes_is_told_of_once_and_written_to_no_more() -> None:
    async def run() -> None:
        connection, wire, (exchange,) = opened()
        told = []
        exchange.on_gone = lambda: told.append(1)
        exchange.begin("text/plain")
        connection.connection_lost(None)
        written = len(wire.written)
        exchange.write(b"more")
        exchange.end()
        assert (told, len(wire.written), connection.closed.done()) == ([1], written, True)

    asyncio.run(run())


def test_each_engine_has_metrics_of_its_own_names() -> None:
    for family, there, absent in [
        (Family.VLLM, "vllm:num_requests_running{", "sglang:"),
        (Family.SGLANG, "sglang:num_running_reqs{", "vllm:"),
    ]:
        metrics = Metrics("m", 2, family)
        metrics.drafted(2, 1)
        metrics.look(batcher_of())
        text = metrics.text().decode()
        assert there in text
        assert absent not in text
