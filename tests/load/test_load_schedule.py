"""When the requests of an open loop are due, and that they are sent then unless the cap forbids it."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.measurement import Pace, Trust, summarise
from autotune.domain.trust import assess
from autotune.domain.workload import Arrivals, LoadLevel
from tests.load.mock_endpoint import MockEndpoint, Script
from tests.load.running import run, spec_of
from workers.load.schedule import due_times_s


def open_level(rate: float, requests: int, arrivals: Arrivals = Arrivals.POISSON, cap: int = 8) -> LoadLevel:
    return LoadLevel(concurrency=cap, requests=requests, rate_per_s=rate, arrivals=arrivals)


def due(level: LoadLevel, seed: int = 1) -> list[float]:
    found = due_times_s(level, seed)
    assert found is not None
    return found


def test_a_closed_loop_has_no_schedule() -> None:
    assert due_times_s(LoadLevel(concurrency=8, requests=4), 1) is None


def test_constant_arrivals() -> None:
    assert due(open_level(4, 5, Arrivals.CONSTANT)) == [0.0, 0.25, 0.5, 0.75, 1.0]


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 1000), st.integers(1, 300), st.integers(0, 2**31 - 1), st.sampled_from(Arrivals))
def test_a_schedule_begins_at_once_never_goes_back_and_is_the_seeds(
    rate: float, requests: int, seed: int, arrivals: Arrivals
) -> None:
    level = open_level(rate, requests, arrivals)
    times = due(level, seed)
    assert len(times) == requests
    assert times[0] == 0
    assert all(a <= b for a, b in itertools.pairwise(times))
    assert times == due(level, seed)


def test_poisson_arrivals_are_exponential() -> None:
    times = due(open_level(2.0, 20_001))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.5, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(0.5, rel=0.03)
    assert statistics.median(gaps) == pytest.approx(0.5 * 0.6931, rel=0.05)


def test_other_seeds_and_levels_have_other_arrivals() -> None:
    assert due(open_level(2, 10), 1) != due(open_level(2, 10), 2)
    ratio = {round(b / a, 6) for a, b in zip(due(open_level(2, 10))[1:], due(open_level(4, 10))[1:], strict=True)}
    assert len(ratio) > 1


def test_requests_are_sent_when_they_are_due(tmp_path: Path) -> None:
    level = open_level(100, 40, cap=20)
    with MockEndpoint() as endpoint:
        spec = spec_of(endpoint.url, level)
        samples = run(spec, tmp_path).levels["c20r100"]
    assert [sample.error for sample in samples] == [None] * 40
    for sample, when in zip(samples, due(level, spec.study_seed), strict=True):
        assert sample.schedule_lag_ms is not None
        assert sample.schedule_lag_ms == pytest.approx(1000 * (sample.t_send_s - when), abs=1e-3)
        assert sample.schedule_lag_ms >= 0


def test_the_cap_delays_requests_and_that_shows(tmp_path: Path) -> None:
    """Ten requests are due within 50 ms; two at a time, the last can't be sent before four others had their turn."""
    level = open_level(200, 10, Arrivals.CONSTANT, cap=2)
    with MockEndpoint(Script(first_s=0.06)) as endpoint:
        spec = spec_of(endpoint.url, level)
        result = run(spec, tmp_path)
    samples = result.levels["c2r200"]
    assert endpoint.open_most == 2
    assert samples[-1].schedule_lag_ms is not None
    assert samples[-1].schedule_lag_ms > 4 * 60 - 45
    assert samples[-1].ttft_ms is not None
    assert samples[-1].e2e_ms is not None
    assert samples[-1].e2e_ms == pytest.approx(1000 * (samples[-1].t_last_s - samples[-1].t_send_s), abs=1e-3)
    figures = summarise(level.name, 2, samples, level.rate_per_s)
    assert (figures.pace, figures.in_flight_peak) == (Pace.CAP, 2)
    measurement = assess(spec.workload, result.levels, [figures])
    assert measurement.trust is Trust.WARN
    assert any("cap-bound" in reason for reason in measurement.trust_reasons)


def test_levels_of_both_kinds_in_one_run(tmp_path: Path) -> None:
    with MockEndpoint() as endpoint:
        result = run(spec_of(endpoint.url, LoadLevel(concurrency=2, requests=3), open_level(50, 3)), tmp_path)
    assert list(result.levels) == ["c2", "c8r50"]
    assert [s.schedule_lag_ms is None for s in result.levels["c2"]] == [True] * 3
    assert [s.schedule_lag_ms is None for s in (*result.levels["c8r50"], *result.warm_up)] == [False] * 3 + [True] * 2
