"""Two launches on the same prompts: what prompts have to do with a time is in both, and drops out of their ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autotune.domain.intervals import correlated
from autotune.domain.request_sample import RequestSample
from autotune.domain.steadiness import pace_ms
from autotune.domain.value import Value


class Ratio(Value):
    """Time per token of the one over that of the other, of `pairs` prompts; below 1 the one is faster.

    The interval knows of noise within a launch only: another launch of the same configuration may lie outside.
    """

    ratio: float
    low: float
    high: float
    pairs: int


def paired_ratio(
    one: Sequence[RequestSample], other: Sequence[RequestSample], concurrency: int, confidence: float = 0.95
) -> Ratio | None:
    """Pairs by the number of the prompt, where both went well; None for too few pairs.

    Only for launches whose requests of the same number had the same prompt, as those of one study and level may have.
    Pairs stay in the order of their numbers: neighbours ran at about the same time, and share what slowed them.
    """
    mine, theirs = _paces(one), _paces(other)
    logs = [math.log(mine[index] / theirs[index]) for index in sorted(mine.keys() & theirs.keys())]
    size = max(concurrency, 1)
    groups = [logs[i : i + size] for i in range(0, len(logs), size)]
    interval = correlated([math.fsum(group) / len(group) for group in groups], confidence)
    if interval is None:
        return None
    return Ratio(
        ratio=math.exp(interval.mean), low=math.exp(interval.low), high=math.exp(interval.high), pairs=len(logs)
    )


def _paces(samples: Sequence[RequestSample]) -> Mapping[int, float]:
    known = ((s.index, pace_ms(s)) for s in samples if s.error is None)
    return {index: pace for index, pace in known if pace is not None and pace > 0}
