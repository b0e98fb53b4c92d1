"""Knobs as Optuna parameters: every kind of value, and "unset", as something a sampler can draw."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from autotune.domain.knobs import BooleanKind, ChoiceKind, FloatKind, IntegerKind, Knob, KnobValue, ListKind
from autotune.domain.space import SearchSpace

UNSET = "unset"
SET = "set"


def _switch(knob: Knob) -> str:
    """The parameter that says whether a number is set at all."""
    return f"{knob.name}?"


def _item(knob: Knob, index: int) -> str:
    """The parameter that says whether an item of a list is in it."""
    return f"{knob.name}[{index}]"


def _distribution(knob: Knob) -> BaseDistribution | None:
    """The one parameter of a knob beside its switch; None for a list, which takes one an item."""
    match knob.type:
        case BooleanKind():
            texts = ["false", "true"]
        case ChoiceKind():
            texts = [json.dumps(v) for v in knob.type.values]
        case IntegerKind():
            # Optuna knows no step on a log scale: a log knob with a step is drawn linearly.
            log = knob.type.log and knob.type.step == 1
            return IntDistribution(knob.type.low, knob.type.high, log=log, step=knob.type.step)
        case FloatKind():
            return FloatDistribution(knob.type.low, knob.type.high, log=knob.type.log)
        case ListKind():
            return None
    return CategoricalDistribution([UNSET, *texts] if knob.unset else texts)


def draw(trial: optuna.Trial, space: SearchSpace, facts: Mapping[str, Any]) -> dict[str, KnobValue]:
    """Let the sampler choose a value for every free knob whose condition holds for the values before it."""
    values: dict[str, KnobValue] = dict(space.hold)
    for knob in space.free_knobs():
        if space.is_active(knob, values, facts):
            values[knob.name] = _draw_one(trial, knob)
    return values


def _draw_one(trial: optuna.Trial, knob: Knob) -> KnobValue:
    distribution = _distribution(knob)
    if isinstance(distribution, CategoricalDistribution):
        return _from_text(trial.suggest_categorical(knob.name, distribution.choices))
    if knob.unset and trial.suggest_categorical(_switch(knob), [UNSET, SET]) == UNSET:
        return None
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            knob.name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    if isinstance(knob.type, ListKind):
        return _draw_list(trial, knob, knob.type)
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(knob.name, distribution.low, distribution.high, log=distribution.log)


def _draw_list(trial: optuna.Trial, knob: Knob, kind: ListKind) -> KnobValue:
    """The drawn items; filled up from the front, or cut at the end, to a length that is allowed."""
    wanted = [trial.suggest_categorical(_item(knob, i), [False, True]) for i in range(len(kind.items))]
    missing = kind.min_length - sum(wanted)
    for i, chosen in enumerate(wanted):
        if missing > 0 and not chosen:
            wanted[i] = True
            missing -= 1
    return tuple(item for item, chosen in zip(kind.items, wanted, strict=True) if chosen)[: kind.max_length]


def encode(
    values: Mapping[str, KnobValue], space: SearchSpace, facts: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """The parameters and distributions that `draw` would have used to get these values."""
    params: dict[str, Any] = {}
    distributions: dict[str, BaseDistribution] = {}
    for knob in space.free_knobs():
        if not space.is_active(knob, values, facts):
            continue
        value = values.get(knob.name)
        distribution = _distribution(knob)
        if isinstance(distribution, CategoricalDistribution):
            params[knob.name] = UNSET if value is None else json.dumps(value)
            distributions[knob.name] = distribution
            continue
        if knob.unset:
            params[_switch(knob)] = UNSET if value is None else SET
            distributions[_switch(knob)] = CategoricalDistribution([UNSET, SET])
        if isinstance(knob.type, ListKind) and isinstance(value, tuple):
            for index, item in enumerate(knob.type.items):
                params[_item(knob, index)] = item in value
                distributions[_item(knob, index)] = CategoricalDistribution([False, True])
        elif value is not None and distribution is not None:
            params[knob.name] = value
            distributions[knob.name] = distribution
    return params, distributions


def _from_text(text: Any) -> KnobValue:
    if text == UNSET:
        return None
    value = json.loads(str(text))
    return tuple(value) if isinstance(value, list) else value
