"""The rule that cuts a hopeless load: its error rate under noise that comes in a row, and what it saves."""

from __future__ import annotations

import math
import random

import pytest
from scipy.special import stdtrit

from autotune.domain.early_abort import ERROR_RATE, LEAST_WAVES, HopelessAbove, at_least, t_quantile

WAVES = 16
LIMIT = HopelessAbove(limits_ms={"c8": 10.0}, objective_ms=12.5, trial=3)


def launch(chance: random.Random, mean_ms: float, spread: float, alike: float) -> list[float]:
    """Waves of one level; neighbours correlate by `alike`."""
    state, found = chance.gauss(0, 1), []
    for _ in range(WAVES):
        found.append(mean_ms * (1 + spread * state))
        state = alike * state + math.sqrt(1 - alike * alike) * chance.gauss(0, 1)
    return found


def is_cut(waves_ms: list[float]) -> int | None:
    return next((n for n in range(1, WAVES) if LIMIT.cut("c8", waves_ms[:n], WAVES) is not None), None)


@pytest.mark.parametrize("spread", [0.02, 0.3])
@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_a_level_at_its_limit_is_cut_as_rarely_as_promised(spread: float, alike: float) -> None:
    chance = random.Random(7)
    launches = 1500
    cut = sum(is_cut(launch(chance, 10.0, spread, alike)) is not None for _ in range(launches))
    assert cut / launches <= ERROR_RATE


def test_a_level_that_is_far_beyond_its_limit_is_cut_early() -> None:
    chance = random.Random(7)
    cuts = [is_cut(launch(chance, 20.0, 0.05, 0.5)) for _ in range(100)]
    assert all(cut is not None and cut <= WAVES // 2 for cut in cuts)


def test_few_waves_another_level_and_a_level_that_is_over_are_left_alone() -> None:
    slow = [100.0 + n for n in range(WAVES)]
    assert LIMIT.cut("c8", slow[: LEAST_WAVES + 1], WAVES) is not None
    assert LIMIT.cut("c8", slow[:LEAST_WAVES], WAVES) is None
    assert LIMIT.cut("c8", slow, WAVES) is None
    assert LIMIT.cut("c4", slow[:8], WAVES) is None
    assert LIMIT.cut(None, slow[:8], WAVES) is None
    assert at_least([], WAVES) is None


@pytest.mark.parametrize("freedom", [4, 5, 6, 9, 15, 30, 200])
@pytest.mark.parametrize("tail", [0.01, 0.001, 0.0001])
def test_the_quantile_is_that_of_the_t_distribution(freedom: int, tail: float) -> None:
    assert t_quantile(freedom, tail) == pytest.approx(float(stdtrit(freedom, 1 - tail)), rel=2e-3)
