"""When enough requests of a level have been measured: a precision was asked for, not a number of requests.

Requests are taken as they end, in batches of as many as are in flight. From four batches on, after each one: the
interval of the mean time per token on a log scale, at 98 %, since it is looked at again and again. In simulations the
interval on which a level ended covers the truth in 95 % of cases and more. Batches of half as many would end sooner,
and cover 83 to 87 % where all streams share one noise.
"""

from __future__ import annotations

import math

from autotune.domain.intervals import MeanInterval, batch_means, correlated
from autotune.domain.request_sample import RequestSample
from autotune.domain.steadiness import pace_ms
from autotune.domain.stop_rule import Decision, StopRule, Verdict

__all__ = ["Decision", "StopRule", "Stopping", "Verdict", "level_interval"]

MOST_BATCHES = 80  # more are taken together in pairs, so that a look stays cheap


class Stopping:
    """One level under way. Feed it every request as it ends; what it answers holds for the requests so far.

    A look costs about a third of a millisecond, and there is one a batch at most.
    """

    def __init__(self, rule: StopRule, concurrency: int) -> None:
        self._rule = rule
        self._size = max(concurrency, 1)
        self._skipped = rule.skip_batches * concurrency if concurrency > 1 else 0
        self._logs: list[float] = []
        self._requests = 0
        self._interval: MeanInterval | None = None

    def add(self, sample: RequestSample) -> Decision:
        """Requests that failed or have no pace count towards the cap alone."""
        return self.add_pace(pace_ms(sample) if sample.error is None else None)

    def add_pace(self, pace: float | None) -> Decision:
        """As `add`, by the time per token in ms, where the request is not read yet; None as for a failed one."""
        self._requests += 1
        if pace is not None and pace > 0:
            self._logs.append(math.log(pace))
            if len(self._logs) % self._size == 0 and self._batches >= self._rule.least_batches:
                self._interval = level_interval(self._used, self._size, self._rule.confidence)
        return Decision(
            verdict=self._verdict(),
            requests=self._requests,
            batches=self._batches,
            mean_ms=None if self._interval is None else math.exp(self._interval.mean),
            half_width=None if self._interval is None else math.expm1(self._interval.half),
        )

    @property
    def _used(self) -> list[float]:
        return self._logs[self._skipped :]

    @property
    def _batches(self) -> int:
        return len(self._used) // self._size

    def _verdict(self) -> Verdict:
        rule, interval = self._rule, self._interval
        if interval is not None:
            if rule.reference_ms is not None and interval.low > math.log(rule.reference_ms) + math.log1p(rule.worse_by):
                return Verdict.WORSE
            if math.expm1(interval.half) <= rule.precision:
                return Verdict.PRECISE
        return Verdict.CAP if self._requests >= rule.most_requests else Verdict.GO_ON


def level_interval(logs: list[float], concurrency: int, confidence: float = 0.95) -> MeanInterval | None:
    """Of the mean log time per token, from requests in the order in which they ended; None for too few of them."""
    means = batch_means(logs, concurrency)
    while len(means) > MOST_BATCHES:
        means = batch_means(means, 2)
    return correlated(means, confidence)
