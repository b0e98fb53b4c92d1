"""Bounds of knobs that a study's own failures taught: an engine that says what it needs says it once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from autotune.domain.failure import Bound, FailureValue
from autotune.domain.knobs import ChoiceKind, EnvVar, Flag, FloatKind, IntegerKind, Knob, KnobValue
from autotune.domain.space import SearchSpace
from autotune.domain.trial import Trial, TrialState
from autotune.domain.value import Value

# Where the first is set, the engine reads it in place of the second, whose name its message gives.
# Source: DeepEP for Ascend, which falls back to HCCL_BUFFSIZE.
_IN_PLACE_OF = {"HCCL_BUFFSIZE": "DEEPEP_HCCL_BUFFSIZE"}
_SIGNS = {Bound.AT_LEAST: ">=", Bound.AT_MOST: "<="}


class LearnedBound(Value):
    """The least or the most that a knob may have for the rest of a study.

    `unset_fails` says that a trial that left the knob to the engine failed for it too.
    """

    knob: str
    setting: str
    bound: Bound
    value: float
    unit: str
    trial: int
    unset_fails: bool = False

    def __str__(self) -> str:
        return f"{self.setting} {_SIGNS[self.bound]} {self.value:g}, learned from trial {self.trial}"

    def keeps(self, value: KnobValue) -> bool:
        """Whether a value of the knob respects the bound."""
        if value is None:
            return not self.unset_fails
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return value >= self.value if self.bound is Bound.AT_LEAST else value <= self.value


class Fitted(Value):
    """Values that keep every bound, and in words what was changed for that."""

    values: dict[str, KnobValue]
    repairs: tuple[str, ...] = ()


def learned_bounds(space: SearchSpace, trials: Iterable[Trial]) -> tuple[LearnedBound, ...]:
    """What the failed trials taught, the strictest of each knob and direction, by knob."""
    strictest: dict[tuple[str, Bound], LearnedBound] = {}
    for trial in sorted(trials, key=lambda t: t.number):
        if trial.state is TrialState.FAILED:
            for taught in _taught_by(space, trial):
                key = (taught.knob, taught.bound)
                known = strictest.get(key)
                strictest[key] = taught if known is None else _stricter(known, taught)
    return tuple(bound for _, bound in sorted(strictest.items()))


def fit(space: SearchSpace, bounds: Iterable[LearnedBound], values: Mapping[str, KnobValue]) -> Fitted | None:
    """The values, with each knob that breaks a bound moved onto it; None where the space has no such value."""
    fitted = dict(values)
    repairs: list[str] = []
    for bound in bounds:
        knob = space.by_name.get(bound.knob)
        if knob is None or bound.keeps(fitted.get(bound.knob)):
            continue
        nearest = _nearest(knob, bound)
        if nearest is None or knob.name in space.hold:
            return None
        fitted[knob.name] = nearest
        repairs.append(str(bound))
    return Fitted(values=fitted, repairs=tuple(repairs)) if _all_keep(bounds, fitted) else None


def broken(bounds: Iterable[LearnedBound], values: Mapping[str, KnobValue]) -> list[LearnedBound]:
    """The bounds that a settled candidate does not respect; an inactive knob, which is absent, breaks none."""
    return [b for b in bounds if b.knob in values and not b.keeps(values[b.knob])]


def _all_keep(bounds: Iterable[LearnedBound], values: Mapping[str, KnobValue]) -> bool:
    return all(bound.keeps(values.get(bound.knob)) for bound in bounds)


def _taught_by(space: SearchSpace, trial: Trial) -> Iterator[LearnedBound]:
    for told in trial.failure.values if trial.failure else ():
        if told.bound is None or told.setting is None:
            continue
        for knob in _knobs(space, told.setting, trial):
            mine = trial.candidate.values.get(knob.name)
            taught = _bound(knob, told, trial.number, unset=mine is None)
            # A trial that respects what its own message asks for teaches nothing: something else is meant.
            if not taught.keeps(mine):
                yield taught


def _bound(knob: Knob, told: FailureValue, number: int, *, unset: bool) -> LearnedBound:
    assert told.bound is not None
    lands = knob.lands
    setting = lands.name if isinstance(lands, EnvVar) else lands.flag if isinstance(lands, Flag) else knob.name
    return LearnedBound(
        knob=knob.name,
        setting=setting,
        bound=told.bound,
        value=told.value,
        unit=told.unit,
        trial=number,
        unset_fails=unset,
    )


def _knobs(space: SearchSpace, setting: str, trial: Trial) -> list[Knob]:
    in_place = _landing_on(space, _IN_PLACE_OF.get(setting, ""))
    used = [knob for knob in in_place if knob.name in trial.candidate.values]
    return used or _landing_on(space, setting)


def _landing_on(space: SearchSpace, setting: str) -> list[Knob]:
    def name(knob: Knob) -> str | None:
        match knob.lands:
            case EnvVar(name=env):
                return env
            case Flag(flag=flag):
                return flag
        return None

    return [knob for knob in space.knobs if setting and name(knob) == setting]


def _stricter(known: LearnedBound, taught: LearnedBound) -> LearnedBound:
    closer = max if known.bound is Bound.AT_LEAST else min
    winner = known if closer(known.value, taught.value) == known.value else taught
    return winner.model_copy(update={"unset_fails": known.unset_fails or taught.unset_fails})


def _nearest(knob: Knob, bound: LearnedBound) -> KnobValue:
    """The knob's value closest to the bound that keeps it; None where there is none."""
    least = bound.bound is Bound.AT_LEAST
    match knob.type:
        case IntegerKind(low=low, high=high, step=step):
            steps = (bound.value - low) / step
            value = low + step * max((math.ceil if least else math.floor)(steps), 0)
            value = min(value, low + (high - low) // step * step)
            return value if bound.keeps(value) else None
        case FloatKind(low=lowest, high=highest):
            real = min(max(bound.value, lowest), highest)
            return real if bound.keeps(real) else None
        case ChoiceKind(values=choices):
            numbers = [v for v in choices if isinstance(v, int | float) and not isinstance(v, bool)]
            kept = [v for v in numbers if bound.keeps(v)]
            return (min if least else max)(kept, default=None)
    return None
