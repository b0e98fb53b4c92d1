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
from workers.load.refusal import BadTrace
from workers.load.schedule import due_times_s, staggered_s


def open_level(rate: float, requests: int, arrivals: Arrivals = Arrivals.POISSON, cap: int = 8) -> LoadLevel:
    burstiness = 0.3 if arrivals is Arrivals.GAMMA else None
    return LoadLevel(concurrency=cap, requests=requests, rate_per_s=rate, arrivals=arrivals, burstiness=burstiness)


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


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_arrivals_have_their_rate_and_burstiness(burstiness: float) -> None:
    level = LoadLevel(concurrency=8, requests=20_001, rate_per_s=2.0, burstiness=burstiness, arrivals=Arrivals.GAMMA)
    gaps = [b - a for a, b in itertools.pairwise(due(level))]
    assert statistics.fmean(gaps) == pytest.approx(0.5, rel=0.05)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_ramp_goes_from_one_rate_to_the_other() -> None:
    level = LoadLevel(concurrency=8, requests=3_000, rate_per_s=10, rate_to_per_s=50, arrivals=Arrivals.CONSTANT)
    times = due(level)
    assert times[-1] == pytest.approx(100, rel=0.01)  # 3,000 at a mean of 30 a second
    assert sum(when < 10 for when in times) == pytest.approx(10 * 12, abs=2)
    assert sum(when >= 90 for when in times) == pytest.approx(10 * 48, abs=2)
    down = due(level.model_copy(update={"rate_per_s": 50.0, "rate_to_per_s": 10.0}))
    assert sum(when < 10 for when in down) == pytest.approx(10 * 48, abs=2)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.1, 100), st.floats(0.1, 100), st.integers(1, 200), st.sampled_from(Arrivals), st.integers(0, 99))
def test_a_ramp_never_goes_back(start: float, end: float, requests: int, arrivals: Arrivals, seed: int) -> None:
    level = open_level(start, requests, arrivals).model_copy(update={"rate_to_per_s": end})
    times = due(level, seed)
    assert len(times) == requests
    assert all(a <= b for a, b in itertools.pairwise(times))


def test_a_duration_ends_a_schedule() -> None:
    level = LoadLevel.model_validate(
        {"concurrency": 8, "rate_per_s": 4, "arrivals": "constant", "duration_s": 2, "rate_to_per_s": 8}
    )
    assert len(due(level)) == 12
    poisson = due(LoadLevel.model_validate({"concurrency": 8, "rate_per_s": 100, "duration_s": 10}))
    assert poisson[-1] < 10
    assert len(poisson) == pytest.approx(1000, rel=0.15)
    assert poisson == due(open_level(100, 2_000))[: len(poisson)]


def traced(tmp_path: Path, text: str, **more: object) -> LoadLevel:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    return LoadLevel.model_validate({"concurrency": 4, "trace_file": str(path), **more})


def test_a_trace_says_when(tmp_path: Path) -> None:
    level = traced(tmp_path, '{"at_s": 0.5}\n\n{"at_s": 0.5, "prompt_tokens": 9}\n{"at_s": 3, "output_tokens": 4}\n')
    assert due(level) == [0.5, 0.5, 3.0]
    assert due(level.model_copy(update={"requests": 2})) == [0.5, 0.5]
    assert due(level.model_copy(update={"duration_s": 1.0})) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no lines"),
        ('{"at_s": 1}\n{"at_s": 0.5}', "entry 2 comes before the one above it; sort it by at_s"),
        ('{"at_s": 1}\n{"at": 2}', r"line 2: at_s: Field required"),
        ("hello", "line 1"),
    ],
)
def test_a_trace_that_makes_no_sense(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadTrace, match=words):
        due_times_s(traced(tmp_path, text), 1)


def test_a_trace_that_is_not_there() -> None:
    with pytest.raises(BadTrace, match="can't be read"):
        due_times_s(LoadLevel.model_validate({"concurrency": 1, "trace_file": "/nowhere/trace"}), 1)


def test_staggered_streams_spread_over_one_request() -> None:
    level = LoadLevel(concurrency=4, requests=8, stagger=True)
    assert staggered_s(level, [1.0, 3.0]) == [0.0, 0.5, 1.0, 1.5]
    assert staggered_s(level, []) == [0.0] * 4
    assert staggered_s(level.model_copy(update={"stagger": False}), [1.0]) == [0.0] * 4


def test_a_trace_is_sent_as_it_says(tmp_path: Path) -> None:
    level = traced(tmp_path, '{"at_s": 0}\n{"at_s": 0.05, "prompt_tokens": 9}\n{"at_s": 0.1, "output_tokens": 4}\n')
    with MockEndpoint() as endpoint:
        samples = run(spec_of(endpoint.url, level), tmp_path).levels["c4t"]
    assert [sample.prompt_tokens for sample in samples] == [32, 9, 32]
    assert [sample.completion_tokens for sample in samples] == [20, 20, 4]
    assert all(sample.t_send_s >= when for sample, when in zip(samples, (0, 0.05, 0.1), strict=True))


def test_a_duration_ends_a_closed_loop(tmp_path: Path) -> None:
    level = LoadLevel.model_validate({"concurrency": 2, "duration_s": 0.6, "stagger": True})
    with MockEndpoint() as endpoint:
        samples = run(spec_of(endpoint.url, level, output=2), tmp_path).levels["c2"]
    assert len(samples) >= 2
    assert [sample.index for sample in samples] == list(range(len(samples)))
    assert all(sample.error is None and sample.t_send_s < 20 for sample in samples)
    assert len({one.prompt for one in endpoint.served}) == len(endpoint.served)
