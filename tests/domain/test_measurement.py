"""Figures of a level from its requests."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.measurement import LevelMeasurement, Pace, RequestSample, quantile, quantiles, summarise

NUMBERS = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


def request(index: int, send: float = 0.0, last: float = 1.0, **more: object) -> RequestSample:
    return RequestSample.model_validate({"index": index, "t_send_s": send, "t_last_s": last, **more})


@settings(max_examples=200, deadline=None)
@given(NUMBERS, st.floats(0, 1))
def test_quantile_is_numpys(values: list[float], q: float) -> None:
    assert quantile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(NUMBERS)
def test_quantiles_are_numpys(values: list[float]) -> None:
    found = quantiles(values)
    assert found is not None
    assert found.n == len(values)
    assert found.mean == pytest.approx(float(np.mean(values)), rel=1e-9, abs=1e-9)
    for q, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        assert value == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-9)
    assert min(values) <= found.p50 <= found.p90 <= found.p99 <= max(values)


def test_no_values_no_quantiles() -> None:
    assert quantiles([]) is None


def test_one_level() -> None:
    good = {"completion_tokens": 10, "prompt_tokens": 5, "e2e_ms": 900.0}
    samples = [
        request(0, 1.0, 2.0, ttft_ms=10.0, tpot_ms=2.0, **good),
        request(1, 1.5, 3.0, ttft_ms=30.0, tpot_ms=4.0, client_lag_ms=3.0, **good),
        request(2, 2.0, 5.0, error="timeout", completion_tokens=7, ttft_ms=1e9),
    ]
    level = summarise("c2", 2, samples)
    assert (level.level, level.concurrency, level.sent, level.failed) == ("c2", 2, 3, 1)
    assert level.error_rate == pytest.approx(1 / 3)
    assert level.errors == {"timeout": 1}
    assert level.duration_s == pytest.approx(4.0)
    assert level.output_tok_s == pytest.approx(20 / 4)
    assert level.requests_per_s == pytest.approx(2 / 4)
    assert level.ttft_ms is not None
    assert level.tpot_ms is not None
    assert (level.ttft_ms.n, level.ttft_ms.mean, level.tpot_ms.mean) == (2, 20.0, 3.0)
    assert (level.prompt_tokens_mean, level.output_tokens_mean) == (5, 10)
    assert level.client_lag_p99_ms == pytest.approx(2.94)
    assert level.stamp == "kernel"


def test_undefined_stays_undefined() -> None:
    level = summarise("c1", 1, [request(0, error="reset"), request(1, stamp="user")])
    assert (level.tpot_ms, level.ttft_ms, level.e2e_ms) == (None, None, None)
    assert (level.prompt_tokens_mean, level.output_tokens_mean, level.output_tok_s) == (None, None, 0)
    assert level.stamp == "user"


def test_a_missing_tpot_is_left_out_of_the_mean() -> None:
    level = summarise("c1", 1, [request(0, tpot_ms=4.0), request(1)])
    assert level.tpot_ms is not None
    assert (level.tpot_ms.n, level.tpot_ms.mean) == (1, 4.0)


SAMPLES = st.builds(
    RequestSample,
    index=st.integers(0, 10_000),
    t_send_s=st.floats(0, 100),
    t_last_s=st.floats(100, 200),
    ttft_ms=st.none() | st.floats(0.1, 1e4),
    tpot_ms=st.none() | st.floats(0.1, 1e3),
    completion_tokens=st.none() | st.integers(0, 2000),
    client_lag_ms=st.floats(0, 100),
    prompt_tokens=st.none() | st.integers(0, 200_000),
    cached_tokens=st.none() | st.integers(0, 200_000),
    schedule_lag_ms=st.none() | st.floats(0, 1e5),
    error=st.none() | st.sampled_from(["timeout", "http_503", "reset"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(SAMPLES, min_size=1, max_size=20, unique_by=lambda s: s.index), st.randoms(use_true_random=False))
def test_order_does_not_matter(samples: list[RequestSample], shuffle: random.Random) -> None:
    shuffled = list(samples)
    shuffle.shuffle(shuffled)
    level = summarise("c1r2", 1, samples, 2.0)
    assert level == summarise("c1r2", 1, shuffled, 2.0)
    assert sum(level.errors.values()) == level.failed
    assert level.sent == len(samples)
    assert math.isfinite(level.output_tok_s)
    assert type(level).model_validate_json(level.model_dump_json()) == level


FLIGHTS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 10_000)), min_size=1, max_size=40)


@settings(max_examples=100, deadline=None)
@given(FLIGHTS)
def test_littles_law(flights: list[tuple[int, int]]) -> None:
    samples = [
        request(index, start / 1000, (start + length) / 1000, e2e_ms=float(length))
        for index, (start, length) in enumerate(flights)
    ]
    level = summarise("c1", 1, samples)
    assert level.in_flight_mean is not None
    assert level.in_flight_peak is not None
    assert level.e2e_ms is not None
    assert level.in_flight_mean * level.duration_s / level.sent * 1000 == pytest.approx(level.e2e_ms.mean)
    assert level.in_flight_mean <= level.in_flight_peak + 1e-9
    # No moment has more requests than one at which some request is sent.
    assert level.in_flight_peak == max(sum(1 for a, n in flights if a <= at < a + n) for at, _ in flights)


def test_requests_that_follow_each_other_are_never_in_flight_together() -> None:
    level = summarise("c1", 1, [request(n, float(n), n + 1.0) for n in range(5)])
    assert level.in_flight_mean == pytest.approx(1.0)
    assert level.in_flight_peak == 1


@pytest.mark.parametrize(
    ("cached", "uncached"),
    [
        ((None, None), None),
        ((60, 80), 30.0),
        ((None, 80), 60.0),  # an engine that found nothing leaves the count out
        ((0, 0), 100.0),
    ],
    ids=str,
)
def test_uncached_tokens(cached: tuple[int | None, int | None], uncached: float | None) -> None:
    samples = [request(n, prompt_tokens=100, cached_tokens=found) for n, found in enumerate(cached)]
    samples.append(request(2, prompt_tokens=100, cached_tokens=99, error="timeout"))
    assert summarise("c1", 1, samples).uncached_tokens_mean == uncached


def test_uncached_tokens_of_unknown_prompts_are_unknown() -> None:
    assert summarise("c1", 1, [request(0, cached_tokens=5)]).uncached_tokens_mean is None


def test_a_closed_loop_has_no_rate() -> None:
    level = summarise("c1", 1, [request(0)])
    assert (level.rate_per_s, level.rate_reached, level.schedule_lag_p99_ms, level.pace) == (None, None, None, None)


def open_loop(lag_ms: float, lasts_s: float, requests: int = 20, cap: int = 4) -> LevelMeasurement:
    """Requests that are due at 10/s, each sent so late."""
    samples = [
        request(n, n / 10 + lag_ms / 1000, n / 10 + lag_ms / 1000 + lasts_s, schedule_lag_ms=lag_ms)
        for n in range(requests)
    ]
    return summarise(f"c{cap}r10", cap, samples, 10.0)


@pytest.mark.parametrize(
    ("lag_ms", "lasts_s", "pace"),
    [
        (4.9, 0.05, Pace.SUPPLY),
        (4.9, 0.9, Pace.SUPPLY),  # more in flight than the cap allows can't be, but nobody waited
        (50.0, 0.05, Pace.CLIENT),
        (50.0, 0.35, Pace.CAP),
    ],
)
def test_what_sets_the_pace_of_an_open_loop(lag_ms: float, lasts_s: float, pace: Pace) -> None:
    level = open_loop(lag_ms, lasts_s)
    assert level.pace is pace
    assert level.schedule_lag_p99_ms == pytest.approx(lag_ms)
    assert level.rate_per_s == 10
    assert level.rate_reached == pytest.approx(level.requests_per_s / 10)
    assert level.rate_reached == pytest.approx(20 / (1.9 + lasts_s) / 10)


def test_a_slow_schedule_bears_more_lag() -> None:
    samples = [request(n, n * 2 + 0.09, n * 2 + 1.0, schedule_lag_ms=90.0) for n in range(5)]
    assert summarise("c1r0.5", 1, samples, 0.5).pace is Pace.SUPPLY  # 90 ms of 2 s


def test_a_level_that_was_stored_before_these_figures_existed_can_be_read() -> None:
    stored = summarise("c1", 1, [request(0)]).model_dump(mode="json")
    for key in ("uncached_tokens_mean", "in_flight_mean", "in_flight_peak", "rate_per_s", "rate_reached", "pace"):
        del stored[key]
    assert LevelMeasurement.model_validate(stored).in_flight_mean is None
