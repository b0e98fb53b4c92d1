"""Random raw values of a space: what a search without any knowledge would try."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Any

from autotune.domain.knobs import BooleanKind, ChoiceKind, FloatKind, IntegerKind, Kind, Knob, KnobValue
from autotune.domain.space import SearchSpace

FLOAT_STEPS = 100  # real numbers closer than a hundredth of their range are no different launch


def draw(
    space: SearchSpace, facts: Mapping[str, Any] | None, rng: Random, unset: float | None = 0.5
) -> dict[str, KnobValue]:
    """One value for every knob, uniformly.

    A knob that may be unset is so with probability `unset`; None counts "unset" as one value among the
    others, so that every combination is as likely where no scale is logarithmic. Knobs are asked in the
    order of the space, and one whose condition fails for the values before it gets none; with `facts` of
    None, conditions are passed over. Knobs on hold keep their value. No rule is applied:
    `SearchSpace.settle` does that. The same state of `rng` gives the same values.
    """
    values: dict[str, KnobValue] = dict(space.hold)
    for knob in space.free_knobs():
        if facts is None or space.is_active(knob, values, facts):
            share = 1 / (_values(knob.type) + 1) if unset is None else unset
            values[knob.name] = None if knob.unset and rng.random() < share else draw_of(knob.type, rng)
    return values


def choices(knob: Knob) -> int:
    """How many values the knob may take, unset included; a real number counts as FLOAT_STEPS."""
    return _values(knob.type) + knob.unset


def _values(kind: Kind) -> int:
    match kind:
        case BooleanKind():
            return 2
        case ChoiceKind():
            return len(kind.values)
        case IntegerKind():
            return (kind.high - kind.low) // kind.step + 1
        case FloatKind():
            return FLOAT_STEPS
    longest = min(kind.max_length, len(kind.items))
    return sum(math.comb(len(kind.items), length) for length in range(kind.min_length, longest + 1))


def draw_of(kind: Kind, rng: Random) -> KnobValue:
    """A value of the kind; on a log scale every ratio is as likely, elsewhere every value."""
    match kind:
        case BooleanKind():
            return rng.random() < 0.5
        case ChoiceKind():
            return rng.choice(kind.values)
        case IntegerKind():
            steps = (kind.high - kind.low) // kind.step
            if not kind.log:
                return kind.low + kind.step * rng.randint(0, steps)
            drawn = math.exp(rng.uniform(math.log(kind.low), math.log(kind.high + 1)))
            return kind.low + kind.step * min(steps, int((drawn - kind.low) / kind.step))
        case FloatKind():
            if not kind.log:
                return rng.uniform(kind.low, kind.high)
            drawn = math.exp(rng.uniform(math.log(kind.low), math.log(kind.high)))
            return min(max(drawn, kind.low), kind.high)
    longest = min(kind.max_length, len(kind.items))
    length = rng.randint(min(kind.min_length, longest), longest)
    return tuple(kind.items[i] for i in sorted(rng.sample(range(len(kind.items)), length)))
