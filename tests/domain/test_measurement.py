"""Figures of a level from its requests."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.measurement import RequestSample, quantile, quantiles, summarise

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
    error=st.none() | st.sampled_from(["timeout", "http_503", "reset"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(SAMPLES, min_size=1, max_size=20, unique_by=lambda s: s.index), st.randoms(use_true_random=False))
def test_order_does_not_matter(samples: list[RequestSample], shuffle: random.Random) -> None:
    shuffled = list(samples)
    shuffle.shuffle(shuffled)
    level = summarise("c1", 1, samples)
    assert level == summarise("c1", 1, shuffled)
    assert sum(level.errors.values()) == level.failed
    assert level.sent == len(samples)
    assert math.isfinite(level.output_tok_s)
    assert type(level).model_validate_json(level.model_dump_json()) == level
