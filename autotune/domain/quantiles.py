"""Mean and percentiles of times, with what is known of their uncertainty. Plain Python: the load process reads it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate

from pydantic import Field

from autotune.domain.value import Value

P99_NEEDS = 100  # values: of fewer, the p99 lies between the two largest
INTERVAL = 0.95
_REACH = 12  # standard deviations: what lies further out of a binomial distribution is below double precision


class Quantiles(Value):
    """Mean and percentiles of n values: linear interpolation (Hyndman and Fan 7), as numpy and the usual clients do.

    The intervals are those of the ranks (binomial, 95 %), for independent values; None where n is too small to have
    one. `p99` of fewer than 100 values is little else than their maximum: `p99_is_maximum`.
    """

    n: int = Field(ge=1)
    mean: float
    p50: float
    p90: float
    p99: float
    p95: float | None = None
    least: float | None = None
    most: float | None = None
    p50_interval: tuple[float, float] | None = None
    p90_interval: tuple[float, float] | None = None
    p99_interval: tuple[float, float] | None = None

    @property
    def p99_is_maximum(self) -> bool:
        """Whether there are too few values for a p99."""
        return self.n < P99_NEEDS


def quantile(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation between closest ranks of sorted values (numpy's default method)."""
    position = (len(ordered) - 1) * q
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def quantiles(values: Iterable[float]) -> Quantiles | None:
    """None for no values: there is no such thing as a default latency."""
    ordered = sorted(values)
    if not ordered:
        return None
    intervals = {f"p{round(q * 100)}_interval": _interval(ordered, q) for q in (0.5, 0.9, 0.99)}
    return Quantiles(
        n=len(ordered),
        mean=_within(math.fsum(ordered) / len(ordered), ordered),
        p50=quantile(ordered, 0.50),
        p90=quantile(ordered, 0.90),
        p95=quantile(ordered, 0.95),
        p99=quantile(ordered, 0.99),
        least=ordered[0],
        most=ordered[-1],
        **intervals,
    )


def token_weighted(gaps: Iterable[tuple[float, float]]) -> Quantiles | None:
    """Percentiles over tokens of (time, tokens that it brought): each token counts time / tokens.

    As if every event were written once for each of its tokens, with whole numbers of tokens exactly so. `n` counts
    the tokens. No intervals: the tokens of one request are not independent.
    """
    each = sorted((time / tokens, tokens) for time, tokens in gaps if tokens > 0)
    if not each:
        return None
    paces = [pace for pace, _ in each]
    ends = list(accumulate(tokens for _, tokens in each))
    total = ends[-1]

    def at(q: float) -> float:
        position = max(total - 1, 0.0) * q
        rank = math.floor(position)
        low, high = (paces[min(bisect_right(ends, r), len(paces) - 1)] for r in (rank, rank + 1))
        return low + (high - low) * (position - rank)

    return Quantiles(
        n=max(round(total), 1),
        mean=_within(math.fsum(pace * tokens for pace, tokens in each) / total, paces),
        p50=at(0.50),
        p90=at(0.90),
        p95=at(0.95),
        p99=at(0.99),
        least=paces[0],
        most=paces[-1],
    )


def _within(mean: float, ordered: Sequence[float]) -> float:
    """A rounded quotient may lie beyond the values that it is the mean of."""
    return min(max(mean, ordered[0]), ordered[-1])


def _interval(ordered: Sequence[float], q: float) -> tuple[float, float] | None:
    ranks = interval_ranks(len(ordered), q)
    return None if ranks is None else (ordered[ranks[0] - 1], ordered[ranks[1] - 1])


@lru_cache(maxsize=256)
def interval_ranks(n: int, q: float) -> tuple[int, int] | None:
    """Ranks from 1 of the two of n ordered values that enclose the quantile with 95 %, whatever the distribution.

    The number of values below the quantile is binomial. None where even the least or the largest value is too near.
    """
    tail = (1 - INTERVAL) / 2
    deviation = math.sqrt(n * q * (1 - q))
    first = max(0, math.floor(n * q - _REACH * deviation))
    last = min(n, math.ceil(n * q + _REACH * deviation))
    low = high = None
    below = 0.0
    for k in range(first, last + 1):
        if below <= tail:
            low = k  # P(fewer than k) is still within the tail
        below += math.exp(
            math.lgamma(n + 1)
            - math.lgamma(k + 1)
            - math.lgamma(n - k + 1)
            + k * math.log(q)
            + (n - k) * math.log1p(-q)
        )
        if high is None and below >= 1 - tail:
            high = k + 1
    return None if not low or high is None or high > n else (low, high)
