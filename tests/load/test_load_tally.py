"""What a running load tells of itself, and when it is a lost cause."""

from __future__ import annotations

import asyncio
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import builders
from workers.load.recording import End, Read, Recording
from workers.load.spec import LoadTally
from workers.load.tally import Tally
from workers.lost_cause import ALL_OF_THE_FIRST, lost_cause


def recording(*pieces: bytes, end: End = End.COMPLETE) -> Recording:
    now = time.monotonic_ns()
    return Recording(send_ns=now, end_ns=now, reads=[Read(None, now, piece) for piece in pieces], end=end)


def test_failures_are_counted_with_their_latest_reason() -> None:
    told: list[LoadTally] = []
    tally = Tally(told.append, output_tokens=2)

    async def level() -> None:
        async with tally.running():
            for one in (
                recording(b"HTTP/1.1 20", b"0 OK\r\n\r\n"),
                recording(b"HTTP/1.1 200 OK\r\n\r\n", end=End.CUT),
                recording(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"),
                recording(end=End.CONNECT),
            ):
                with tally.counting(one):
                    pass

    asyncio.run(level())
    assert told == [LoadTally(ended=4, failed=3, error="connect")]


def answer(tpot_ms: float, tokens: int) -> Recording:
    """A head at once, the first event much later, the last one after `tokens - 1` times that."""
    head, first = time.monotonic_ns(), time.monotonic_ns() + int(5e9)
    last = first + int(tpot_ms * 1e6) * (tokens - 1)
    reads = [Read(None, head, b"HTTP/1.1 200 OK\r\n\r\n"), Read(None, first, b"data: x"), Read(None, last, b"data: y")]
    return Recording(send_ns=head, end_ns=last, reads=reads, end=End.COMPLETE)


def test_waves_are_the_mean_times_per_token_of_as_many_good_answers_as_there_are_streams() -> None:
    tally = Tally(lambda _: None, output_tokens=101)

    async def level() -> tuple[float, ...]:
        async with tally.running(streams=2):
            for one in (answer(10, 101), recording(end=End.CONNECT), answer(20, 101), answer(30, 101)):
                with tally.counting(one):
                    pass
            return tally.now().waves_ms

    assert asyncio.run(level()) == (15.0,)


def test_idle_is_the_time_since_the_last_word_and_new_requests_are_none() -> None:
    tally = Tally(lambda _: None, output_tokens=2)
    assert tally.now().idle_s is None
    old, new = recording(), recording()
    old.send_ns -= int(100e9)
    with tally.counting(old), tally.counting(new):
        assert (tally.now().idle_s or 0.0) >= 100
        new.reads.append(Read(None, time.monotonic_ns() - int(50e9), b"word"))
        assert 50 <= (tally.now().idle_s or 0.0) < 100


WORKLOAD = builders.workload(levels=["c1", "c4"])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 200), st.integers(0, 200))
def test_a_level_that_may_still_succeed_goes_on(ended: int, failed: int) -> None:
    failed = min(ended, failed)
    level = WORKLOAD.levels[1]
    lost = lost_cause(WORKLOAD, "c4", LoadTally(ended=ended, failed=failed))
    assert (lost is not None) == (failed > level.requests / 2 or failed == ended >= ALL_OF_THE_FIRST)


def test_the_warm_up_counts_for_itself() -> None:
    lost = lost_cause(WORKLOAD, None, LoadTally(ended=99, failed=99, error="http_500"))
    assert lost is not None
    assert (lost.summary, lost.commonest) == ("warm_up: 99 of 99 requests failed", "http_500")
