"""Whether two launches had the same work to do. A prefix cache that holds more makes a slower server look faster.

The measure is the uncached tokens per request: prompt tokens less those that the server says it found in its
cache. A server that says nothing about a level has told of no cached token there: the whole prompt counts, so
that a cache which was switched off does not pass for one that is not reported.

Beside it count the lengths of prompts and answers and the offered rate. What the host had to do meanwhile, and how
many requests were in flight, only inform: they explain a difference, and may be its effect.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping

from pydantic import Field

from autotune.domain.level import LevelMeasurement
from autotune.domain.measurement import Measurement, Trust
from autotune.domain.value import Value

# Both must be exceeded. A cache holds whole blocks: another block size alone moves every request by up to one
# block less a token, and 128 tokens is the block of Ascend's kernels. Requests that meet an evicted block or are
# sent before the prefix is there are a few in a hundred; above that they decide the result.
BLOCK_TOKENS = 128
SHARE = 0.02

PROMPT_SHARE = 0.005  # of the tokens of a prompt: time to the first token goes with them
PROMPT_SLACK = 1.0  # tokens: a begin-of-text token
ANSWER_SHARE = 0.02  # of the tokens of an answer; where a length was asked for, any other one is not trusted at all
RATE_SHARE = 0.001  # of the offered rate, which is a setting
NOTED_LOAD = 0.5  # of the load average (and one process), or of the processor time per token: worth telling
NOTED_SHARE = 0.05  # of what is in flight


class Conditions(Value):
    """What a launch was offered, by load level, for the levels where it is known."""

    uncached_tokens: dict[str, float]
    prompt_tokens: dict[str, float] = Field(default_factory=dict)
    output_tokens: dict[str, float] = Field(default_factory=dict)
    rate_per_s: dict[str, float] = Field(default_factory=dict)

    @classmethod
    def of(cls, measurement: Measurement) -> Conditions:
        """Those of one launch."""
        return cls(
            uncached_tokens=_known(measurement, _uncached),
            prompt_tokens=_known(measurement, lambda level: level.prompt_tokens_mean),
            output_tokens=_known(measurement, lambda level: level.output_tokens_mean),
            rate_per_s=_known(measurement, lambda level: level.rate_per_s),
        )

    @classmethod
    def median(cls, measurements: Iterable[Measurement]) -> Conditions:
        """The middle of several launches, level by level; one odd launch does not move it."""
        every = [cls.of(measurement) for measurement in measurements]
        return cls(
            uncached_tokens=_medians(one.uncached_tokens for one in every),
            prompt_tokens=_medians(one.prompt_tokens for one in every),
            output_tokens=_medians(one.output_tokens for one in every),
            rate_per_s=_medians(one.rate_per_s for one in every),
        )

    def differences(self, measurement: Measurement, whose: str = "the baseline") -> tuple[str, ...]:
        """In words, where a measurement was made under other conditions than these; empty where it was not.

        `whose` conditions these are, for the words.
        """
        theirs = Conditions.of(measurement)
        return (
            *_told(
                self.uncached_tokens,
                theirs.uncached_tokens,
                _blocks_differ,
                "{:.0f} uncached tokens a request",
                whose,
            ),
            *_told(self.prompt_tokens, theirs.prompt_tokens, _prompts_differ, "{:g} tokens a prompt", whose),
            *_told(self.output_tokens, theirs.output_tokens, _answers_differ, "{:g} tokens an answer", whose),
            *_told(self.rate_per_s, theirs.rate_per_s, _rates_differ, "{:g} requests/s offered", whose),
        )


class Comparability(Value):
    """`refused`: why two measurements may not be compared; empty where they may. `notes` explain a difference."""

    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def comparability(measurement: Measurement, reference: Measurement, whose: str = "the other") -> Comparability:
    """Whether a measurement may be held against another one, which is `whose` in the words."""
    refused = list(Conditions.of(reference).differences(measurement, whose))
    shapes = [", ".join(sorted(m.levels)) for m in (measurement, reference)]
    if shapes[0] != shapes[1]:
        refused.insert(0, f"its load levels are {shapes[0]}, {whose} had {shapes[1]}")
    for name, one in (("it", measurement), (whose, reference)):
        if one.trust is Trust.INVALID:
            refused.append(f"{name} is not trusted: {'; '.join(one.trust_reasons)}")
    return Comparability(refused=tuple(refused), notes=tuple(_notes(measurement, reference, whose)))


def _notes(mine: Measurement, theirs: Measurement, whose: str) -> Iterable[str]:
    for name, level in mine.levels.items():
        other = theirs.levels.get(name)
        if other is None:
            continue
        if level.stamp != other.stamp:
            yield f"arrival times at {name} are from the {level.stamp}, {whose} had them from the {other.stamp}"
        flying, others = level.in_flight_mean, other.in_flight_mean
        if flying is not None and others is not None and abs(flying - others) > NOTED_SHARE * others:
            yield f"{flying:.1f} requests in flight at {name}, {whose} had {others:.1f}"
    if mine.host is None or theirs.host is None:
        return
    load, others = mine.host.load_average, theirs.host.load_average
    if load is not None and others is not None and abs(load - others) > max(1.0, NOTED_LOAD * others):
        yield f"the host's load was {load:.1f}, {whose} had {others:.1f}"
    cost, others = mine.host.cpu_ms_per_token, theirs.host.cpu_ms_per_token
    if cost is not None and others is not None and abs(cost - others) > NOTED_LOAD * others:
        yield f"the load process took {cost:.3f} ms of a core per token, {whose} had {others:.3f}"


def _known(measurement: Measurement, reading: Callable[[LevelMeasurement], float | None]) -> dict[str, float]:
    found = {name: reading(level) for name, level in measurement.levels.items()}
    return {name: value for name, value in found.items() if value is not None}


def _medians(launches: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for launch in launches:
        for name, value in launch.items():
            found.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def _told(
    mine: Mapping[str, float],
    theirs: Mapping[str, float],
    differ: Callable[[float, float], bool],
    words: str,
    whose: str,
) -> tuple[str, ...]:
    number = words.split(" ", maxsplit=1)[0]
    return tuple(
        f"{words.format(theirs[name])} at {name}, {whose} had {number.format(value)}"
        for name, value in mine.items()
        if name in theirs and differ(theirs[name], value)
    )


def _uncached(level: LevelMeasurement) -> float | None:
    return level.prompt_tokens_mean if level.uncached_tokens_mean is None else level.uncached_tokens_mean


def _blocks_differ(tokens: float, reference: float) -> bool:
    difference = abs(tokens - reference)
    return difference >= BLOCK_TOKENS and difference > SHARE * reference


def _prompts_differ(tokens: float, reference: float) -> bool:
    return abs(tokens - reference) > max(PROMPT_SLACK, PROMPT_SHARE * reference)


def _answers_differ(tokens: float, reference: float) -> bool:
    return abs(tokens - reference) > ANSWER_SHARE * reference


def _rates_differ(rate: float, reference: float) -> bool:
    return abs(rate - reference) > RATE_SHARE * reference
