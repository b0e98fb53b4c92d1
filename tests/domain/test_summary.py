"""Properties of a level's figures: what holds whatever was measured."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.goodput import Goal, meets
from autotune.domain.measurement import LevelMeasurement, RequestSample, TokenCount, quantiles, summarise
from autotune.domain.objective import Limit, goals
from autotune.domain.quantiles import Quantiles, interval_ranks, token_weighted
from autotune.domain.steady_window import Window, steady_window, tokens_within

TIMES = ("tpot_ms", "ttft_ms", "e2e_ms", "ttft_sched_ms", "e2e_sched_ms", "ttfo_ms", "decode_tpot_ms", "itl_ms")
GOALS = (Goal(figure="ttft_ms", most_ms=200.0), Goal(figure="tpot_ms", most_ms=20.0))


def request(index: int, send_s: float, **more: Any) -> RequestSample:
    """A good request of 11 tokens: first after 100 ms, then one each 10 ms."""
    fields: dict[str, Any] = {
        "ttft_ms": 100.0,
        "ttfo_ms": 100.0,
        "tpot_ms": 10.0,
        "decode_tpot_ms": 10.0,
        "e2e_ms": 200.0,
        "completion_tokens": 11,
        "prompt_tokens": 5,
        "events": 11,
        "gaps_ms": (10.0,) * 10,
        "gap_tokens": (1.0,) * 10,
        "counted_by": TokenCount.USAGE,
    }
    fields = {**fields, **more}
    last_s = more.get("t_last_s", send_s + fields["e2e_ms"] / 1000 if fields["e2e_ms"] else send_s)
    return RequestSample(index=index, t_send_s=send_s, **{**fields, "t_last_s": last_s})


@st.composite
def requests(draw: st.DrawFn, scheduled: bool = False) -> list[RequestSample]:
    """Requests whose figures fit together, some of them failed."""
    made: list[RequestSample] = []
    for index in range(draw(st.integers(1, 25))):
        send_s = draw(st.integers(0, 5000)) / 1000
        ttft_ms = float(draw(st.integers(1, 1000)))
        pace_ms = float(draw(st.integers(1, 50)))
        tokens = draw(st.integers(1, 60))
        lag = float(draw(st.integers(0, 300))) if scheduled else None
        e2e_ms = ttft_ms + pace_ms * (tokens - 1)
        if draw(st.integers(0, 9)) == 0:
            last_s = send_s + e2e_ms / 1000
            made.append(
                RequestSample(index=index, t_send_s=send_s, t_last_s=last_s, error="timeout", schedule_lag_ms=lag)
            )
            continue
        paced = tokens > 1
        made.append(
            request(
                index,
                send_s,
                ttft_ms=ttft_ms,
                ttfo_ms=ttft_ms,
                e2e_ms=e2e_ms,
                tpot_ms=pace_ms if paced else None,
                decode_tpot_ms=pace_ms if paced else None,
                completion_tokens=tokens,
                events=tokens,
                gaps_ms=(pace_ms,) * (tokens - 1),
                gap_tokens=(1.0,) * (tokens - 1),
                schedule_lag_ms=lag,
            )
        )
    return made


def times(level: LevelMeasurement) -> list[Quantiles]:
    return [value for name in TIMES if (value := getattr(level, name)) is not None]


@settings(max_examples=60, deadline=None)
@given(requests(scheduled=True), st.randoms(use_true_random=False))
def test_order_does_not_matter(samples: list[RequestSample], shuffle: random.Random) -> None:
    level = summarise("c4r2", 4, samples, 2.0, GOALS)
    shuffle.shuffle(samples)
    assert summarise("c4r2", 4, samples, 2.0, GOALS) == level
    assert LevelMeasurement.model_validate_json(level.model_dump_json()) == level


@settings(max_examples=80, deadline=None)
@given(requests())
def test_bounds(samples: list[RequestSample]) -> None:
    level = summarise("c4", 4, samples, goals=GOALS)
    for found in times(level):
        assert found.least is not None
        assert found.most is not None
        assert found.p95 is not None
        assert found.least <= found.p50 <= found.p90 <= found.p95 <= found.p99 <= found.most
        assert found.least <= found.mean <= found.most
        for interval, value in ((found.p50_interval, found.p50), (found.p90_interval, found.p90)):
            if interval is not None:
                assert found.least <= interval[0] <= value <= interval[1] <= found.most
    assert level.peak_output_tok_s is not None
    assert level.peak_output_tok_s >= level.output_tok_s * (1 - 1e-9)
    assert level.goodput_per_s is not None
    assert level.slo_attainment is not None
    assert level.goodput_per_s <= level.requests_per_s + 1e-9
    assert 0 <= level.slo_attainment <= 1 - level.error_rate + 1e-9
    if level.steady_s is not None:
        assert 0 < level.steady_s <= level.duration_s + 1e-9
        assert level.steady_in_flight_mean is not None
        assert level.steady_in_flight_mean <= (level.in_flight_peak or 0) + 1e-9


@settings(max_examples=60, deadline=None)
@given(requests(), st.integers(2, 8))
def test_a_slower_clock_scales_every_time_and_no_count(samples: list[RequestSample], factor: int) -> None:
    slow = [
        s.model_copy(
            update={
                "t_send_s": s.t_send_s * factor,
                "t_last_s": s.t_last_s * factor,
                "gaps_ms": tuple(g * factor for g in s.gaps_ms),
                **{n: None if (v := getattr(s, n)) is None else v * factor for n in ("ttft_ms", "ttfo_ms", "tpot_ms")},
                **{n: None if (v := getattr(s, n)) is None else v * factor for n in ("decode_tpot_ms", "e2e_ms")},
            }
        )
        for s in samples
    ]
    one, other = summarise("c4", 4, samples), summarise("c4", 4, slow)
    for before, after in zip(times(one), times(other), strict=True):
        assert after.n == before.n
        for name in ("mean", "p50", "p90", "p99", "least", "most"):
            assert getattr(after, name) == pytest.approx(getattr(before, name) * factor)
    assert other.output_tok_s == pytest.approx(one.output_tok_s / factor)
    assert other.in_flight_mean == pytest.approx(one.in_flight_mean)
    assert (other.sent, other.failed, other.slo_attainment) == (one.sent, one.failed, one.slo_attainment)


@settings(max_examples=80, deadline=None)
@given(requests(), st.integers(0, 8000), st.integers(0, 4000))
def test_a_failed_request_never_improves_goodput(samples: list[RequestSample], send: int, lasts: int) -> None:
    failed = RequestSample(index=999, t_send_s=send / 1000, t_last_s=(send + lasts) / 1000, error="reset")
    before = summarise("c4", 4, samples, goals=GOALS)
    after = summarise("c4", 4, [*samples, failed], goals=GOALS)
    assert after.goodput_per_s is not None
    assert before.goodput_per_s is not None
    assert after.goodput_per_s <= before.goodput_per_s + 1e-9
    assert (after.slo_attainment or 0) <= (before.slo_attainment or 0) + 1e-12
    assert after.tpot_ms == before.tpot_ms


@settings(max_examples=60, deadline=None)
@given(requests(), st.sampled_from(["ttft_ms", "tpot_ms", "e2e_ms"]), st.floats(1, 1000), st.floats(0, 500))
def test_a_stricter_goal_is_met_by_no_more(
    samples: list[RequestSample], figure: str, most_ms: float, less: float
) -> None:
    loose, strict = Goal(figure=figure, most_ms=most_ms), Goal(figure=figure, most_ms=most_ms - less)
    assert all(meets(s, [loose]) for s in samples if meets(s, [strict]))


@settings(max_examples=60, deadline=None)
@given(requests(), st.floats(0, 12))
def test_tokens_of_two_parts_are_those_of_the_whole(samples: list[RequestSample], middle_s: float) -> None:
    first, second, whole = Window(-1, middle_s), Window(middle_s, 100), Window(-1, 100)
    total = sum(s.completion_tokens or 0 for s in samples if s.error is None)
    assert tokens_within(samples, whole) == pytest.approx(total)
    assert tokens_within(samples, first) + tokens_within(samples, second) == pytest.approx(total)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(1, 8)), min_size=1, max_size=40))
def test_weighted_by_tokens_is_each_event_written_once_a_token(gaps: list[tuple[float, int]]) -> None:
    found = token_weighted(gaps)
    plain = quantiles([time / tokens for time, tokens in gaps for _ in range(tokens)])
    assert found is not None
    assert plain is not None
    assert found.n == plain.n
    for name in ("mean", "p50", "p90", "p95", "p99", "least", "most"):
        assert getattr(found, name) == pytest.approx(getattr(plain, name))
    assert found.p50_interval is None


def test_no_events_no_gaps() -> None:
    assert token_weighted([]) is None
    level = summarise("c1", 1, [request(0, 0.0, gaps_ms=(), gap_tokens=())])
    assert (level.itl_ms, level.icl_ms) == (None, None)


def test_one_token_has_no_pace() -> None:
    one = request(0, 0.0, completion_tokens=1, tpot_ms=None, decode_tpot_ms=None, e2e_ms=100.0, gaps_ms=())
    level = summarise("c1", 1, [one, request(1, 1.0)])
    assert level.tpot_ms is not None
    assert (level.tpot_ms.n, level.tpot_ms.mean) == (1, 10.0)
    assert meets(one, [Goal(figure="tpot_ms", most_ms=1.0)]), "its e2e is what remains to be judged"
    assert not meets(one, [Goal(figure="e2e_ms", most_ms=1.0)])


def test_long_drafts_gain_nothing_by_their_first_event() -> None:
    """Four tokens an event each 20 ms: the pace is 5 ms, the usual quotient says less."""
    drafted = request(0, 0.0, tpot_ms=4.88, decode_tpot_ms=5.0, gaps_ms=(20.0,) * 31, gap_tokens=(4.0,) * 31, events=32)
    level = summarise("c1", 1, [drafted])
    assert level.decode_tpot_ms is not None
    assert level.itl_ms is not None
    assert level.icl_ms is not None
    assert (level.decode_tpot_ms.mean, level.itl_ms.mean, level.icl_ms.mean) == (5.0, 5.0, 20.0)
    assert level.itl_ms.n == 124
    assert (level.tokens_per_event_mean, level.accept_len) == (4.0, 4.0)


def test_waiting_for_its_turn_counts_from_when_a_request_was_due() -> None:
    """Rate 10/s, one in flight, 500 ms each: the last of ten waits four seconds, and no other time shows it."""
    samples = [
        request(n, n * 0.5, ttft_ms=500.0, e2e_ms=500.0, schedule_lag_ms=n * 400.0, t_last_s=n * 0.5 + 0.5)
        for n in range(10)
    ]
    level = summarise("c1r10", 1, samples, 10.0)
    assert level.ttft_ms is not None
    assert level.ttft_sched_ms is not None
    assert (level.ttft_ms.mean, level.ttft_sched_ms.mean) == (500.0, 2300.0)
    assert level.ttft_sched_ms.most == 4100.0


def test_a_trace_offers_what_its_due_times_say() -> None:
    level = summarise("c4t", 4, [request(n, n * 0.25, schedule_lag_ms=0.0) for n in range(9)])
    assert level.rate_per_s == pytest.approx(4.0)


@pytest.mark.parametrize(("merged", "n"), [(2, 18), (3, 20)])
def test_few_bounds_are_left_out_and_many_are_kept(merged: int, n: int) -> None:
    samples = [request(i, i, ttft_low_ms=90.0 if i < merged else None, coalesced=i < merged) for i in range(20)]
    level = summarise("c1", 1, samples)
    assert level.ttft_ms is not None
    assert level.ttft_ms.n == n
    narrow = [request(i, i, ttft_low_ms=99.5, coalesced=True) for i in range(20)]
    assert (summarise("c1", 1, narrow).ttft_ms or level.ttft_ms).n == 20


# --- the steady window ------------------------------------------------------------------------


def closed(streams: int, each: int, lasts_s: float = 1.0, stagger_s: float = 0.0) -> list[RequestSample]:
    starts = [(stream * stagger_s + turn * lasts_s) for stream in range(streams) for turn in range(each)]
    return [request(n, s, t_last_s=s + lasts_s) for n, s in enumerate(sorted(starts))]


def test_steady_from_all_first_answers_to_the_first_stream_without_work() -> None:
    assert steady_window(closed(4, 5), 4, open_loop=False) == Window(1.0, 5.0)
    assert steady_window(closed(4, 5, stagger_s=0.25), 4, open_loop=False) == Window(1.75, 5.0)


@pytest.mark.parametrize("samples", [[], closed(4, 1), closed(3, 5), [request(0, 0.0)]], ids=len)
def test_too_short_to_be_steady(samples: list[RequestSample]) -> None:
    assert steady_window(samples, 4, open_loop=False) is None
    assert steady_window(samples[:1], 4, open_loop=True) is None


def test_an_open_loop_is_steady_behind_its_filling_and_before_its_drain() -> None:
    samples = [request(n, n * 0.5, t_last_s=n * 0.5 + 3) for n in range(41)]
    assert steady_window(samples, 8, open_loop=True) == Window(6.0, 20.0)
    quick = [request(n, n * 0.5, t_last_s=n * 0.5 + 0.2) for n in range(41)]
    assert steady_window(quick, 8, open_loop=True) == Window(2.0, 20.0)
    failed = [s.model_copy(update={"error": "reset"}) for s in quick]
    assert steady_window(failed, 8, open_loop=True) is None


def test_steady_throughput_is_free_of_ramp_and_drain() -> None:
    """Four streams with one second each: 4 answers a second, whatever the level's length."""
    level = summarise("c4", 4, closed(4, 5))
    assert level.steady_requests == 16
    assert level.steady_requests_per_s == pytest.approx(4.0)
    assert level.steady_output_tok_s == pytest.approx(44.0)
    assert level.steady_in_flight_mean == pytest.approx(4.0)
    # One stream goes on alone for long: the whole level's throughput falls, the steady one does not.
    tail = summarise("c4", 4, [*closed(4, 5), *(request(100, 5.0, t_last_s=60.0),)])
    assert tail.output_tok_s < 0.2 * level.output_tok_s
    assert tail.steady_output_tok_s == pytest.approx(44.0)


# --- percentiles ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "q", "ranks"),
    [
        (5, 0.5, None),  # even least and largest of five enclose a median in 93.75 % only
        (6, 0.5, (1, 6)),
        (10, 0.5, (2, 9)),
        (100, 0.5, (40, 61)),
        (100, 0.99, None),
        (40, 0.99, None),
        (1000, 0.99, (983, 997)),
    ],
)
def test_ranks_of_an_interval(n: int, q: float, ranks: tuple[int, int] | None) -> None:
    assert interval_ranks(n, q) == ranks


@pytest.mark.parametrize(("n", "q"), [(20, 0.5), (60, 0.9), (600, 0.99)])
def test_intervals_of_percentiles_cover_them(n: int, q: float) -> None:
    ranks = interval_ranks(n, q)
    assert ranks is not None
    draws = np.sort(np.random.default_rng(5).exponential(size=(4000, n)), axis=1)
    truth = -np.log(1 - q)
    inside = np.mean((draws[:, ranks[0] - 1] <= truth) & (truth <= draws[:, ranks[1] - 1]))
    assert inside >= 0.945


def test_a_p99_of_few_is_said_to_be_the_maximum() -> None:
    few, many = quantiles(range(99)), quantiles(range(100))
    assert few is not None
    assert many is not None
    assert (few.p99_is_maximum, many.p99_is_maximum) == (True, False)
    assert few.p99_interval is None


# --- goals ------------------------------------------------------------------------------------


def test_goals_of_a_request_are_a_studys_limits_on_times() -> None:
    sla = [
        Limit.parse(text)
        for text in (
            "ttft_p99_ms <= 400",
            "tpot_ms <= 12 at c8",
            "e2e_sched_p90_ms < 9",
            "error_rate == 0",
            "itl_ms <= 5",
        )
    ]
    assert goals(sla, "c8") == (
        Goal(figure="ttft_ms", most_ms=400),
        Goal(figure="tpot_ms", most_ms=12),
        Goal(figure="e2e_sched_ms", most_ms=9),
    )
    assert len(goals(sla, "c1")) == 2
    assert goals([Limit.parse("ttft_ms >= 5"), Limit.parse("output_tok_s >= 5")], "c1") == ()


def test_a_request_without_a_first_token_meets_no_goal_for_it() -> None:
    silent = request(0, 0.0, ttft_ms=None)
    assert not meets(silent, [Goal(figure="ttft_ms", most_ms=1e9)])
    assert meets(silent, [])
    loose = Goal(figure="decode_tpot_ms", most_ms=15)
    assert meets(request(0, 0.0, decode_tpot_ms=None), [loose]), "its plain pace stands in"
    assert not meets(request(0, 0.0, decode_tpot_ms=None, tpot_ms=None), [loose])
