"""Limits, objectives and the judgement of a measurement."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.conditions import Conditions
from autotune.domain.measurement import Trust
from autotune.domain.objective import METRICS, Limit, Objective, ObjectiveMetric, Verdict, judge, metric
from tests import builders

LIMITS = (Limit.parse("ttft_p99_ms <= 400"), Limit.parse("tpot_ms <= 12 at c8"), Limit.parse("error_rate == 0"))
times = st.floats(0.1, 1000)


@pytest.mark.parametrize(
    ("text", "metric_name", "op", "bound", "level"),
    [
        ("ttft_p99_ms <= 400", "ttft_p99_ms", "<=", 400.0, None),
        ("tpot_ms<12.5 at c8", "tpot_ms", "<", 12.5, "c8"),
        ("error_rate == 0", "error_rate", "==", 0.0, None),
        ("  output_tok_s >= 1e3 ", "output_tok_s", ">=", 1000.0, None),
        ("tpot_ms <= 12 at c48r2", "tpot_ms", "<=", 12.0, "c48r2"),
        ("tpot_ms <= 12 at c48r0.5", "tpot_ms", "<=", 12.0, "c48r0.5"),
    ],
)
def test_limits_are_read_as_people_write_them(
    text: str, metric_name: str, op: str, bound: float, level: str | None
) -> None:
    limit = Limit.parse(text)
    assert (limit.metric, limit.op, limit.bound, limit.level) == (metric_name, op, bound, level)
    assert Limit.parse(str(limit)) == limit
    assert Limit.model_validate_json(limit.model_dump_json()) == limit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latency <= 3", "unknown metric latency; allowed: tpot_ms"),
        ("ttft_ms", "is not of the form"),
        ("ttft_ms =< 3", "is not of the form"),
        ("ttft_ms <= 1e", "is not a number"),
        ("ttft_ms <= 3 at c8r", "is not of the form"),
        ("ttft_ms <= 3 at c8r.5", "is not of the form"),
    ],
)
def test_a_malformed_limit_says_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limit.parse(text)


def test_every_metric_has_a_value() -> None:
    level = builders.level_measurement("c4")
    assert all(metric(level, name) is not None for name in METRICS)
    with pytest.raises(KeyError):
        metric(level, "tpot_p42_ms")


def test_an_undefined_metric_breaks_its_limit() -> None:
    level = builders.level_measurement("c1", tpot_ms=10.0)
    measured = builders.measurement(levels=("c1",)).model_copy(
        update={"levels": {"c1": level.model_copy(update={"tpot_ms": None})}}
    )
    verdict = judge(measured, Objective(), [Limit.parse("tpot_ms <= 100")])
    assert not verdict.feasible
    assert verdict.objective is None
    assert "undefined" in verdict.reasons[0]


def test_an_untrusted_measurement_is_infeasible_with_its_reasons() -> None:
    measured = builders.measurement(trust=Trust.INVALID, trust_reasons=("c1: cut short",))
    verdict = judge(measured, Objective(), ())
    assert not verdict.feasible
    assert verdict.reasons == ("not trusted: c1: cut short",)
    assert verdict.objective is None, "a number would be compared"


def test_other_conditions_than_the_baselines_leave_no_number_to_compare() -> None:
    reference = Conditions(uncached_tokens={"c1": 11392.0})
    measured = builders.measurement(levels=("c1",), uncached_tokens=12345.0)
    verdict = judge(measured, Objective(), (), reference)
    assert (verdict.feasible, verdict.comparable, verdict.objective) == (False, False, None)
    assert verdict.reasons == ("not comparable: 12345 uncached tokens a request at c1, the baseline had 11392",)
    same = judge(builders.measurement(levels=("c1",), uncached_tokens=11400.0), Objective(), (), reference)
    assert (same.feasible, same.comparable) == (True, True)
    assert same == judge(builders.measurement(levels=("c1",), uncached_tokens=11400.0), Objective(), ())


def test_every_other_reason_is_told_beside_it() -> None:
    measured = builders.measurement(levels=("c8",), tpot_ms=13.0, uncached_tokens=900.0)
    verdict = judge(measured, Objective(), LIMITS, Conditions(uncached_tokens={"c8": 64.0}))
    assert [reason.split(":")[0] for reason in verdict.reasons] == [
        "not comparable",
        "tpot_ms <= 12 at c8 is broken at c8",
    ]


def test_a_verdict_that_was_stored_before_there_were_conditions_is_comparable() -> None:
    assert Verdict.model_validate_json('{"feasible": true, "objective": 9.5, "margins": [], "reasons": []}').comparable


def test_the_objective_is_a_weighted_geometric_mean() -> None:
    measured = builders.measurement(tpot_ms={"c1": 5.0, "c4": 10.0, "c8": 20.0})
    assert Objective().value(measured) == pytest.approx(10.0)
    assert Objective(weights={"c1": 1, "c4": 0, "c8": 0}).value(measured) == pytest.approx(5.0)
    assert Objective(weights={"c4": 0}).value(measured) == pytest.approx(10.0)
    with pytest.raises(ValueError, match="must not be negative"):
        Objective(weights={"c1": -1})
    with pytest.raises(ValueError, match="one must be above 0"):
        builders.study_spec(objective=Objective(weights={"c1": 0, "c4": 0, "c8": 0}))


def test_cost_and_gain_follow_the_direction() -> None:
    tpot, throughput = Objective(), Objective(metric=ObjectiveMetric.THROUGHPUT)
    assert tpot.cost(5) < tpot.cost(6)
    assert throughput.cost(6) < throughput.cost(5)
    assert tpot.gain_pct(10, 5) == pytest.approx(50)
    assert throughput.gain_pct(10, 15) == pytest.approx(50)


@given(tpot=times, ttft=times, better=st.floats(0.1, 1.0))
@settings(max_examples=100, deadline=None)
def test_better_numbers_never_turn_feasible_into_infeasible(tpot: float, ttft: float, better: float) -> None:
    before = judge(builders.measurement(tpot, ttft), Objective(), LIMITS)
    after = judge(builders.measurement(tpot * better, ttft * better), Objective(), LIMITS)
    assert after.feasible or not before.feasible
    assert after.worst_excess <= before.worst_excess + 1e-9
    assert before.objective is not None
    assert math.isfinite(before.objective)
