"""Whether a level's pace is one pace, or drifts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit

from autotune.domain.intervals import batch_means
from autotune.domain.level import LevelMeasurement
from autotune.domain.request_sample import RequestSample
from autotune.domain.steady_window import steady_window

LEAST_BATCHES = 8  # four a half
CHANCE = 0.01  # of a drift that is none


def pace_ms(sample: RequestSample) -> float | None:
    """What a request's time per token is compared by: the decode pace where it has one."""
    return sample.tpot_ms if sample.decode_tpot_ms is None else sample.decode_tpot_ms


def steady_paces(samples: Sequence[RequestSample], concurrency: int, *, open_loop: bool) -> list[float]:
    """Times per token of the good requests that ended in the steady window, in that order."""
    window = steady_window(samples, concurrency, open_loop=open_loop)
    if window is None:
        return []
    ended = [s for s in samples if s.error is None and window.start_s < s.t_last_s <= window.end_s]
    ended.sort(key=lambda s: (s.t_last_s, s.index))
    paces = [pace_ms(s) for s in ended]
    return [p for p in paces if p is not None and p > 0]


def drift(level: LevelMeasurement, samples: Sequence[RequestSample]) -> float | None:
    """By what share the second half of the steady window is slower than the first; None where chance explains it.

    Batch means must differ by more than the interval of their halves' difference, or rise or fall throughout. With
    fewer than eight batches nothing can be said.
    """
    paces = steady_paces(samples, level.concurrency, open_loop=level.rate_per_s is not None)
    means = [math.log(m) for m in batch_means(paces, level.concurrency)]
    if len(means) < LEAST_BATCHES:
        return None
    middle = len(means) // 2
    first, second = means[:middle], means[-middle:]
    apart = math.fsum(second) / middle - math.fsum(first) / middle
    if _halves_differ(first, second, apart) or trend(means) < CHANCE:
        return math.expm1(apart)
    return None


def _halves_differ(first: Sequence[float], second: Sequence[float], apart: float) -> bool:
    """Student's test with the pooled spread of both halves."""
    n = len(first)
    spread = math.fsum(_squares(half) for half in (first, second)) / (2 * n - 2)
    return abs(apart) > _t(2 * n - 2) * math.sqrt(2 * spread / n)


def _squares(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((v - mean) ** 2 for v in values)


def _t(freedom: int) -> float:
    return float(stdtrit(freedom, 1 - CHANCE / 2))


def trend(values: Sequence[float]) -> float:
    """The chance of so steady a rise or fall among values without any (Mann and Kendall, normal approximation)."""
    n = len(values)
    score = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    if score == 0 or n < LEAST_BATCHES:
        return 1.0
    deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return math.erfc((abs(score) - 1) / deviation / math.sqrt(2))
