"""Whether two launches had the same work to do. A prefix cache that holds more makes a slower server look faster.

The measure is the uncached tokens per request: prompt tokens less those that the server says it found in its
cache. A server that says nothing about a level has told of no cached token there: the whole prompt counts, so
that a cache which was switched off does not pass for one that is not reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from autotune.domain.measurement import LevelMeasurement, Measurement
from autotune.domain.value import Value

# Both must be exceeded. A cache holds whole blocks: another block size alone moves every request by up to one
# block less a token, and 128 tokens is the block of Ascend's kernels. Requests that meet an evicted block or are
# sent before the prefix is there are a few in a hundred; above that they decide the result.
BLOCK_TOKENS = 128
SHARE = 0.02


class Conditions(Value):
    """Uncached tokens per request by load level, for the levels where they are known."""

    uncached_tokens: dict[str, float]

    @classmethod
    def of(cls, measurement: Measurement) -> Conditions:
        """Those of one launch."""
        known = {name: _uncached(level) for name, level in measurement.levels.items()}
        return cls(uncached_tokens={name: tokens for name, tokens in known.items() if tokens is not None})

    @classmethod
    def median(cls, measurements: Iterable[Measurement]) -> Conditions:
        """The middle of several launches, level by level; one odd launch does not move it."""
        found: dict[str, list[float]] = {}
        for measurement in measurements:
            for name, tokens in cls.of(measurement).uncached_tokens.items():
                found.setdefault(name, []).append(tokens)
        return cls(uncached_tokens={name: statistics.median(tokens) for name, tokens in found.items()})

    def differences(self, measurement: Measurement) -> tuple[str, ...]:
        """In words, where a measurement was made under other conditions than these; empty where it was not."""
        theirs = Conditions.of(measurement).uncached_tokens
        return tuple(
            f"{theirs[name]:.0f} uncached tokens a request at {name}, the baseline had {mine:.0f}"
            for name, mine in self.uncached_tokens.items()
            if name in theirs and _differ(theirs[name], mine)
        )


def _uncached(level: LevelMeasurement) -> float | None:
    return level.prompt_tokens_mean if level.uncached_tokens_mean is None else level.uncached_tokens_mean


def _differ(tokens: float, reference: float) -> bool:
    difference = abs(tokens - reference)
    return difference >= BLOCK_TOKENS and difference > SHARE * reference
