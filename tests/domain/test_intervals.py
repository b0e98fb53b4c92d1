"""Intervals that keep what they promise although requests are not independent, and when to stop measuring."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.intervals import batch_means, correlated, independent
from autotune.domain.measurement import RequestSample
from autotune.domain.paired import paired_ratio
from autotune.domain.repeats import middle
from autotune.domain.steadiness import drift, trend
from autotune.domain.stopping import Decision, Stopping, StopRule, Verdict, level_interval
from tests.builders import level_measurement
from tests.domain.correlated_noise import paces

VALUES = st.lists(st.floats(-5, 5), min_size=3, max_size=30)


def sample(index: int, tpot_ms: float | None, send_s: float = 0.0, **more: object) -> RequestSample:
    values = {"index": index, "t_send_s": send_s, "t_last_s": send_s + 1.0, "tpot_ms": tpot_ms, **more}
    return RequestSample.model_validate(values)


def test_batches_are_full_and_in_order() -> None:
    assert batch_means([1, 3, 5, 7, 9], 2) == [2.0, 6.0]
    assert batch_means([1.0], 2) == []


def test_too_few_values_have_no_interval() -> None:
    assert correlated([1.0, 2.0]) is None
    assert independent([1.0]) is None


def test_values_that_are_all_alike_have_no_width() -> None:
    found = correlated([2.5] * 8)
    assert found is not None
    assert (found.mean, found.half, found.n) == (2.5, 0.0, 8)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.floats(-10, 10), st.floats(0.1, 10))
def test_intervals_move_and_grow_with_their_values(values: list[float], shift: float, factor: float) -> None:
    one, other = correlated(values), correlated([shift + factor * v for v in values])
    assert one is not None
    assert other is not None
    assert other.mean == pytest.approx(shift + factor * one.mean, abs=1e-6)
    assert other.half == pytest.approx(factor * one.half, rel=1e-4, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_time_may_run_backwards_and_more_confidence_is_wider(values: list[float]) -> None:
    one, back, sure = correlated(values), correlated(values[::-1]), correlated(values, 0.98)
    assert one is not None
    assert back is not None
    assert sure is not None
    assert back.mean == pytest.approx(one.mean, abs=1e-6)
    assert back.half == pytest.approx(one.half, rel=1e-4, abs=1e-6)
    assert sure.half >= one.half - 1e-9
    assert one.low <= one.mean <= one.high


@pytest.mark.parametrize(("streams", "requests"), [(1, 20), (1, 40), (8, 80)])
def test_intervals_cover_the_truth_under_correlated_noise(streams: int, requests: int) -> None:
    """As `make bench-intervals`, with fewer runs, which widen what is allowed: 92 to 97 % in full."""
    rng = np.random.default_rng(7)
    runs, inside, naive = 600, 0, 0
    for _ in range(runs):
        logs = [float(v) for v in paces(rng, requests // streams, streams).ravel()]
        mine, usual = level_interval(logs, streams), independent(logs)
        assert mine is not None
        assert usual is not None
        inside += mine.low <= 0 <= mine.high
        naive += usual.low <= 0 <= usual.high
    assert 0.92 <= inside / runs <= 0.98
    assert naive / runs < 0.85


def test_independent_values_get_no_narrower_interval_than_students() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(300):
        found = correlated([float(v) for v in rng.standard_normal(12)])
        assert found is not None
        inside += found.low <= 0 <= found.high
    assert inside >= 0.94 * 300


# --- stopping ---------------------------------------------------------------------------------


def run(rule: StopRule, concurrency: int, logs: list[float], base_ms: float = 10.0) -> Decision:
    stopping = Stopping(rule, concurrency)
    decision = None
    for index, log in enumerate(logs):
        decision = stopping.add(sample(index, base_ms * math.exp(log)))
        if decision.stop:
            break
    assert decision is not None
    return decision


def noise(seed: int, count: int, spread: float) -> list[float]:
    return [float(v) for v in np.random.default_rng(seed).normal(0, spread, count)]


def test_a_quiet_server_is_known_after_the_fewest_batches() -> None:
    decision = run(StopRule(most_requests=400), 4, noise(1, 400, 0.002))
    assert decision.verdict is Verdict.PRECISE
    assert decision.requests == 4 * 5, "one batch that began together, and four"
    assert decision.batches == 4
    assert decision.mean_ms == pytest.approx(10.0, rel=0.01)
    assert decision.half_width is not None
    assert decision.half_width <= 0.01


def test_a_noisy_one_takes_longer() -> None:
    decision = run(StopRule(most_requests=4000), 4, noise(2, 4000, 0.05))
    assert decision.verdict is Verdict.PRECISE
    assert decision.requests > 80


def test_nothing_is_said_before_the_fewest_batches() -> None:
    decision = run(StopRule(most_requests=100, least_batches=8), 8, noise(1, 71, 0.001))
    assert (decision.verdict, decision.mean_ms) == (Verdict.GO_ON, None)


def test_one_stream_has_no_first_round() -> None:
    assert run(StopRule(most_requests=100), 1, noise(1, 100, 0.001)).requests == 4


def test_the_cap_ends_what_does_not_become_precise() -> None:
    decision = run(StopRule(most_requests=60), 4, noise(4, 200, 0.4))
    assert (decision.verdict, decision.requests) == (Verdict.CAP, 60)


def test_the_cap_counts_requests_that_failed() -> None:
    stopping = Stopping(StopRule(most_requests=5), 1)
    decisions = [stopping.add(sample(n, None, error="reset")) for n in range(5)]
    assert [d.stop for d in decisions] == [False] * 4 + [True]
    assert decisions[-1].mean_ms is None


@pytest.mark.parametrize(
    ("reference_ms", "verdict"), [(9.0, Verdict.WORSE), (9.9, Verdict.PRECISE), (11.0, Verdict.PRECISE)]
)
def test_what_is_clearly_worse_ends_early(reference_ms: float, verdict: Verdict) -> None:
    rule = StopRule(most_requests=400, reference_ms=reference_ms)
    assert run(rule, 4, noise(1, 400, 0.002)).verdict is verdict


def test_the_decode_pace_counts_where_there_is_one() -> None:
    stopping = Stopping(StopRule(most_requests=100, skip_batches=0), 1)
    decisions = [stopping.add(sample(n, 4.9, decode_tpot_ms=5.0)) for n in range(8)]
    assert decisions[-1].verdict is Verdict.PRECISE
    assert decisions[-1].mean_ms == pytest.approx(5.0)


def test_many_batches_are_taken_together() -> None:
    logs = noise(5, 640, 0.01)  # 160 batches of four
    found = level_interval(logs, 4)
    assert found is not None
    assert found.n == 80
    assert found.mean == pytest.approx(math.fsum(logs) / 640, abs=0.001)


# --- pairs, repeats, drift --------------------------------------------------------------------


def test_pairs_are_free_of_what_prompts_do() -> None:
    """Prompts differ by 25 %, the candidate is 2 % faster: pairs show it, means do not."""
    rng = np.random.default_rng(11)
    prompts = rng.normal(0, 0.25, 40)
    one = [
        sample(n, 9.8 * math.exp(p + e)) for n, (p, e) in enumerate(zip(prompts, rng.normal(0, 0.005, 40), strict=True))
    ]
    other = [
        sample(n, 10.0 * math.exp(p + e))
        for n, (p, e) in enumerate(zip(prompts, rng.normal(0, 0.005, 40), strict=True))
    ]
    found = paired_ratio(one[::-1], other, 1)
    assert found is not None
    assert found.low < 0.98 < found.high < 1
    assert found.pairs == 40
    apart = independent([math.log(s.tpot_ms or 1) for s in one])
    assert apart is not None
    assert apart.half > 10 * (found.high - found.low) / 2


def test_only_prompts_of_both_are_pairs() -> None:
    one = [sample(n, 10.0) for n in range(9)]
    other = [sample(n, 10.0, error="reset" if n == 3 else None) for n in range(2, 12)]
    found = paired_ratio(one, other, 1)
    assert found is not None
    assert (found.pairs, found.ratio) == (6, 1.0)
    assert paired_ratio(one[:2], other, 1) is None


def test_one_odd_repeat_moves_nothing() -> None:
    repeats = [level_measurement("c4", tpot_ms=ms, decode_tpot_ms=None) for ms in (10.0, 90.0, 10.2)]
    chosen = middle(repeats)
    assert chosen.tpot_ms == repeats[2].tpot_ms
    assert chosen.repeats == 3
    assert chosen.repeat_spread_pct == pytest.approx(80 / 10.2 * 100)
    assert middle(repeats[:1]).repeat_spread_pct is None


def test_a_repeat_without_figures_is_never_the_better_one() -> None:
    lost = level_measurement("c4", decode_tpot_ms=None).model_copy(update={"tpot_ms": None, "output_tok_s": 0.0})
    good = level_measurement("c4")
    assert middle([lost, good, lost]).tpot_ms == good.tpot_ms
    assert middle([lost, lost]).repeats == 2


def steady(logs: list[float], streams: int = 2) -> list[RequestSample]:
    waves = [logs[i : i + streams] for i in range(0, len(logs), streams)]
    return [
        sample(w * streams + i, 10 * math.exp(v), float(w)) for w, wave in enumerate(waves) for i, v in enumerate(wave)
    ]


def test_a_drift_is_told_and_noise_is_not() -> None:
    level = level_measurement("c2")
    assert drift(level, steady(noise(1, 80, 0.02))) is None
    slower = [v + 0.08 * n / 80 for n, v in enumerate(noise(1, 80, 0.005))]
    moved = drift(level, steady(slower))
    assert moved is not None
    assert 0.02 < moved < 0.08
    assert drift(level, steady(slower[:12])) is None, "too few batches"


def test_a_trend_is_told_by_ranks() -> None:
    assert trend(range(12)) < 0.001
    assert trend([1, 2] * 6) > 0.1
    assert trend([3.0] * 12) == 1.0
