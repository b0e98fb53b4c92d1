"""When a search trial is so much slower than the best one that the rest of its load need not be sent.

Off unless a study asks for it (`early_abort`), never for a baseline, a recipe or a confirmation, and only where the
objective is the time per token. A trial that is cut fails as `hopeless`, and the search is told the least that it
would have cost.

The rule is a sequential one-sided test on the waves of a level: a wave is as many answers as the level has streams, and
its value their mean time per token. After each wave the lower end of a t interval for the level's mean is held against
the level's limit. Answers of one wave share their steps, so that they count once; the spread is widened for waves
that are alike in a row (`CORRELATION`), the first wave, in which caches fill, is left out, and the error rate is
shared by all looks. A level whose mean is not above its limit is cut in at most `ERROR_RATE` of all cases.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pydantic import Field

from autotune.domain.failure import Failure, FailureClass
from autotune.domain.value import Value

LEAST_OBJECTIVE = "objective at least"  # the name of that value in a failure
ERROR_RATE = 0.01  # of a level that is as fast as its limit, over all looks at it
CORRELATION = 0.5  # of two waves in a row that the error rate still holds for
LEAST_WAVES = 5  # behind the first one: fewer say nothing about the spread
MARGIN = 1.25  # a trial is cut where its objective would be worse than the incumbent's by this factor,
OTHERS_AT_BEST = 0.8  # even if it were so much faster than the incumbent at every other level


class HopelessAbove(Value):
    """Limits on a level's mean time per token in ms, by level, and what the objective at least is beyond one.

    `trial` is the incumbent.
    """

    limits_ms: dict[str, float] = Field(min_length=1)
    objective_ms: float
    trial: int

    def cut(self, level: str | None, waves_ms: Sequence[float], waves: int) -> float | None:
        """What the level's mean at least is, where that is beyond its limit; None where the trial may go on.

        `waves_ms` are those that have ended, of `waves` in all.
        """
        limit = self.limits_ms.get(level or "")
        if limit is None or len(waves_ms) >= waves:
            return None
        least = at_least(waves_ms, waves)
        return least if least is not None and least > limit else None


def at_least(waves_ms: Sequence[float], waves: int) -> float | None:
    """The lower bound of a level's mean after these waves of so many; None while there are too few."""
    known = waves_ms[1:]
    if len(known) < LEAST_WAVES:
        return None
    looks = max(waves - LEAST_WAVES, 1)
    quantile = t_quantile(len(known) - 1, ERROR_RATE / looks)
    widened = math.sqrt((1 + CORRELATION) / (1 - CORRELATION) / len(known))
    return statistics.fmean(known) - quantile * widened * statistics.stdev(known)


def least_objective(failure: Failure) -> float | None:
    """What a trial that was cut would at least have cost, in the objective's unit; None for any other failure."""
    if failure.failure_class is not FailureClass.HOPELESS:
        return None
    return next((told.value for told in failure.values if told.name == LEAST_OBJECTIVE), None)


def t_quantile(freedom: int, tail: float) -> float:
    """The t value with so much probability above it, for 3 degrees of freedom or more and a tail of at most 1 %.

    Hill's approximation (Communications of the ACM 13, algorithm 396), right to 0.1 % there. An attempt's process
    imports this, and a numerical library would double the time that it takes to start.
    """
    n, both = float(freedom), 2 * tail
    a = 1 / (n - 0.5)
    b = (48 / a) / a
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * both) ** (2 / n)
    if y <= 0.05 + a:
        y = ((1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3) + 0.5 / (n + 4)) * y - 1) * (n + 1) / (
            n + 2
        ) + 1 / y
        return math.sqrt(n * y)
    x = -statistics.NormalDist().inv_cdf(tail)
    y = x * x
    if freedom < 5:
        c += 0.3 * (n - 4.5) * (x + 0.6)
    c += (((0.05 * d * -x - 5) * -x - 7) * -x - 2) * -x + b
    y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * -x
    return math.sqrt(n * math.expm1(a * y * y))
