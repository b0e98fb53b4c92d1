"""The claim: what is proven, what is not, and how wide its interval is."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from autotune.domain.objective import Objective, ObjectiveMetric
from autotune.domain.study import Budget, Confirmation
from autotune.domain.trial import StudyPhase
from autotune.engine.confirmation import conclude
from tests import builders
from tests.engine.history import History

SPEC = builders.study_spec(
    budget=Budget(trials=60, wall_time_s=3600), confirmation=Confirmation(finalists=2, rounds=3), gate_launches=3
)


def confirmed(
    base: list[float], *finalists: list[float], ttft_ms: float = 100.0, gate: list[float] | None = None
) -> History:
    history = History(SPEC)
    for value in gate or base:
        history.add(StudyPhase.GATE, "baseline", tpot_ms=value)
    for value in base:
        history.add(StudyPhase.CONFIRM, "baseline", tpot_ms=value)
    for i, values in enumerate(finalists):
        for value in values:
            history.add(StudyPhase.CONFIRM, f"finalist-{i + 1}", {"buffer_mb": 100 + i}, value, ttft_ms=ttft_ms)
    return history


def test_a_large_gain_is_proven_with_its_interval() -> None:
    result = conclude(SPEC, confirmed([14.0, 14.1, 13.9], [7.0, 7.1, 6.9], [10.0, 10.1, 9.9]).trials)
    assert result.winner is not None
    assert result.winner.evidence.label == "finalist-1"
    gain = result.winner.gain_pct
    assert gain is not None
    assert gain.low < 50 < gain.high
    assert gain.low > 45
    assert set(result.winner.gain_pct_by_level) == {"c1", "c4", "c8"}
    assert result.finding.startswith("confirmed: finalist-1 is 50.0 % better")
    assert result.baseline.tpot_ms["c1"].mean == pytest.approx(14.0)


def test_a_gain_within_the_noise_is_not_proven() -> None:
    result = conclude(SPEC, confirmed([14.0, 14.6, 13.4], [13.8, 14.3, 13.1]).trials)
    assert result.winner is None
    assert result.finding.startswith("not proven; finalist-1: the interval of the gain")


def test_a_finalist_that_breaks_a_limit_is_not_proven_however_fast() -> None:
    result = conclude(SPEC, confirmed([14.0, 14.1, 13.9], [5.0, 5.0, 5.1], ttft_ms=900.0).trials)
    assert result.winner is None
    assert "3 of 3 launches broke a limit" in result.finding


def test_a_finalist_that_crashed_in_one_launch_is_not_proven() -> None:
    history = confirmed([14.0, 14.1, 13.9], [5.0, 5.0])
    history.add(StudyPhase.CONFIRM, "finalist-1", {"buffer_mb": 100}, failure=builders.failure())
    result = conclude(SPEC, history.trials)
    assert result.winner is None
    assert "1 of 3 launches failed" in result.finding


def test_too_few_launches_prove_nothing() -> None:
    result = conclude(SPEC, confirmed([14.0, 14.1], [5.0, 5.0]).trials)
    assert result.winner is None
    assert "only 2 of 3" in result.finding


def test_throughput_gains_have_the_other_sign() -> None:
    spec = SPEC.model_copy(update={"objective": Objective(metric=ObjectiveMetric.THROUGHPUT)})
    history = History(spec).gate(tpot_ms=14.0)
    for i in range(3):
        history.add(StudyPhase.CONFIRM, "baseline", tpot_ms=14.0 + i / 10)
        history.add(StudyPhase.CONFIRM, "finalist-1", {"buffer_mb": 100}, tpot_ms=7.0 + i / 10)
    result = conclude(spec, history.trials)
    assert result.winner is not None
    assert result.winner.gain_pct is not None
    assert result.winner.gain_pct.low > 20


def test_the_interval_covers_the_true_gain_and_no_gain_is_rarely_claimed() -> None:
    """400 confirmations under 2 % launch noise: nominal error 5 % over both finalists together."""
    random.seed(11)
    covered = claims = 0
    for _ in range(400):
        gate, base, better, same = (
            [m * math.exp(random.gauss(0, 0.02)) for _ in range(3)] for m in (14.0, 14.0, 12.6, 14.0)
        )
        result = conclude(SPEC, confirmed(base, better, same, gate=gate).trials)
        first, second = (c.gain_pct for c in result.contenders)
        assert first is not None
        assert second is not None
        covered += first.low <= 10.0 <= first.high
        claims += second.low > 0
    assert covered / 400 > 0.93
    assert claims / 400 < 0.04


def test_evidence_is_the_mean_of_its_launches() -> None:
    values = [7.0, 7.2, 6.9]
    shown = conclude(SPEC, confirmed([14.0, 14.1, 13.9], values).trials).contenders[0].evidence
    assert shown.tpot_ms["c4"].mean == pytest.approx(statistics.fmean(values))
    assert shown.tpot_ms["c4"].n == 3
    assert shown.launches == 3
