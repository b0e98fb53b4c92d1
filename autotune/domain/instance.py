"""A space on one stack: what exists there, what was left out, and why."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from autotune.domain.knobs import ChoiceKind, Knob, KnobValue
from autotune.domain.space import DerivedSetting, FixedSetting, NamedCandidate, Rule, SearchSpace, Severity
from autotune.domain.stack import StackVersions
from autotune.domain.value import Value

SEARCHED_TIERS = (1, 2)
S = TypeVar("S", FixedSetting, DerivedSetting, Rule)


class LeftOut(Value):
    """Something of a space that an instance does not have."""

    what: str
    name: str
    why: str


class Instance(Value):
    """A space as it can be used on a stack."""

    space: SearchSpace
    left_out: tuple[LeftOut, ...]


def instantiate(space: SearchSpace, stack: StackVersions, include: Collection[str] = ()) -> Instance:
    """Leave out what the stack lacks and what is not searched by default.

    `include` names knobs of tier 3, or `tier3` for all of them. The baseline keeps what it can: a value that
    the stack lacks is left unset, and recipes that need such a value are left out.
    """
    left: list[LeftOut] = []
    knobs: list[Knob] = []
    for knob in space.knobs:
        why = _knob_missing(knob, stack, include)
        if why is None:
            kept, lost = _with_values_of(knob, stack)
            left += [LeftOut(what="value", name=f"{knob.name}={value}", why=reason) for value, reason in lost]
            why = None if kept is not None else "none of its values exists here"
            if kept is not None:
                knobs.append(kept)
        if why is not None:
            left.append(LeftOut(what="knob", name=knob.name, why=why))
    by_name = {knob.name: knob for knob in knobs}
    absent = tuple(sorted({*space.absent, *(k.name for k in space.knobs if k.name not in by_name)}))

    def fits(values: dict[str, KnobValue]) -> bool:
        return all(v is None or (n in by_name and by_name[n].contains(v)) for n, v in values.items())

    recipes: list[NamedCandidate] = []
    for recipe in space.recipes:
        if fits(recipe.values):
            recipes.append(
                recipe.model_copy(update={"values": {n: v for n, v in recipe.values.items() if n in by_name}})
            )
        else:
            left.append(LeftOut(what="recipe", name=recipe.name, why="needs a knob or a value that is not here"))
    instance = space.model_copy(
        update={
            "knobs": tuple(knobs),
            "absent": absent,
            "stack": stack,
            "fixed": tuple(_existing(space.fixed, stack, left, "fixed setting")),
            "derived": tuple(_existing(space.derived, stack, left, "derived setting")),
            "rules": tuple(_certain(_existing(space.rules, stack, left, "rule"), stack, left)),
            "baseline": {n: v for n, v in space.baseline.items() if n in by_name and by_name[n].contains(v)},
            "recipes": tuple(recipes),
        }
    )
    return Instance(space=instance, left_out=tuple(left))


def _knob_missing(knob: Knob, stack: StackVersions, include: Collection[str]) -> str | None:
    why = knob.needs.missing(stack)
    if why is not None:
        return why
    if knob.tier in SEARCHED_TIERS or knob.name in include or (f"tier{knob.tier}" in include and knob.tier == 3):
        return None
    return "not searched: tier 4" if knob.tier == 4 else "not searched by default: tier 3, include it by name"


def _with_values_of(knob: Knob, stack: StackVersions) -> tuple[Knob | None, list[tuple[KnobValue, str]]]:
    """The knob with the values that exist, None when there are none; and those that do not, with the reason."""
    lost: list[tuple[KnobValue, str]] = []
    for limited in knob.limited:
        why = limited.needs.missing(stack)
        if why is not None:
            lost += [(value, why) for value in limited.values]
    if not lost or not isinstance(knob.type, ChoiceKind):
        return knob, []
    gone = [value for value, _ in lost]
    kept = tuple(v for v in knob.type.values if not any(type(g) is type(v) and g == v for g in gone))
    return (knob.model_copy(update={"type": ChoiceKind(values=kept)}) if kept else None), lost


def _existing(items: Sequence[S], stack: StackVersions, left: list[LeftOut], what: str) -> list[S]:
    kept = []
    for item in items:
        why = item.needs.missing(stack)
        if why is None:
            kept.append(item)
        else:
            name = item.about if isinstance(item, FixedSetting) else item.name
            left.append(LeftOut(what=what, name=name, why=why))
    return kept


def _certain(rules: Sequence[Rule], stack: StackVersions, left: list[LeftOut]) -> list[Rule]:
    """A rule refuses only what the installed version refuses: not while that version is unknown."""
    kept = []
    for rule in rules:
        part = rule.needs.unknown(stack) if rule.severity is Severity.REFUSE else None
        if part is None:
            kept.append(rule)
        else:
            left.append(LeftOut(what="rule", name=rule.name, why=f"refuses by the version of {part}, not known here"))
    return kept
