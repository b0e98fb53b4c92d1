"""Whether the parts of a space file fit each other, said of the very line.

`SearchSpace` refuses an incoherent space too, but names one fault at a time and no line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from autotune.documents import Document, KeyPath, dotted, nearest
from autotune.domain import expression
from autotune.domain.knobs import EnvFragment, EnvVar, Knob, Landing
from autotune.domain.space import DerivedSetting, FixedSetting, Rule, SearchSpace
from autotune.domain.template import is_denied_env
from autotune.errors import Problem

T = TypeVar("T", bound=BaseModel)


def incoherences(document: Document) -> list[Problem]:
    """Every fault between the parts that can be read; parts with faults of their own are left out."""
    if not isinstance(document.data, dict):
        return []
    found = _Parts(document.data)
    problems = [
        *_broken_expressions(found),
        *_denied_env(found),
        *_shared_landings(found),
        *_repairs_of_unknown_knobs(found),
        *_values_out_of_range(found),
    ]
    return [replace(p, line=document.line_of(path), file=document.file) for path, p in problems]


class _Parts:
    """What can be read of a space, each part with its place."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.knobs = list(_items(data, "knobs", Knob))
        self.fixed = list(_items(data, "fixed", FixedSetting))
        self.derived = list(_items(data, "derived", DerivedSetting))
        self.rules = list(_items(data, "rules", Rule))
        self.knobs_are_complete = len(self.knobs) == len(_list(data.get("knobs")))


def _items(data: Mapping[str, Any], key: str, model: type[T]) -> Iterator[tuple[KeyPath, T]]:
    for index, item in enumerate(_list(data.get(key))):
        try:
            yield (key, index), model.model_validate(item)
        except ValidationError:
            continue  # reported by the space itself


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(path: KeyPath, message: str, mend: str = "", allowed: tuple[str, ...] = ()) -> tuple[KeyPath, Problem]:
    return path, Problem(dotted(path), message, mend, allowed)


def _broken_expressions(parts: _Parts) -> Iterator[tuple[KeyPath, Problem]]:
    texts: list[tuple[KeyPath, str]] = []
    texts += [((*path, "when"), knob.when) for path, knob in parts.knobs if knob.when]
    for path, setting in parts.derived:
        texts.append(((*path, "value"), setting.value))
        texts += [((*path, "when"), setting.when)] if setting.when else []
    for path, rule in parts.rules:
        texts.append(((*path, "require"), rule.require))
        texts += [((*path, "change", name), text) for name, text in rule.change.items()]
    for path, text in texts:
        try:
            expression.check(text)
        except expression.ExpressionError as error:
            yield _at(path, str(error), "write a CEL expression over knobs.NAME and facts.NAME")


def _denied_env(parts: _Parts) -> Iterator[tuple[KeyPath, Problem]]:
    landings: list[tuple[KeyPath, Landing]] = [(path, knob.lands) for path, knob in parts.knobs]
    landings += [(path, fixed.lands) for path, fixed in parts.fixed]
    landings += [(path, derived.lands) for path, derived in parts.derived]
    for path, lands in landings:
        if isinstance(lands, EnvVar | EnvFragment) and is_denied_env(lands.name):
            message = f"a space may not set {lands.name}"
            yield _at((*path, "lands", "name"), message, "the launch template of the host sets it")


def _shared_landings(parts: _Parts) -> Iterator[tuple[KeyPath, Problem]]:
    """Two knobs that are always active must not land in one place; with conditions they may take turns."""
    first: dict[tuple[str, str], str] = {}
    for path, knob in parts.knobs:
        place = (knob.role, knob.lands.model_dump_json())
        if knob.when is not None:
            continue
        if place in first:
            yield _at((*path, "lands"), f"knob {first[place]} lands in the same place", "give each a place of its own")
        first.setdefault(place, knob.name)


def _repairs_of_unknown_knobs(parts: _Parts) -> Iterator[tuple[KeyPath, Problem]]:
    known = [knob.name for _, knob in parts.knobs]
    for path, rule in parts.rules if parts.knobs_are_complete else ():
        for name in rule.change:
            if name not in known:
                yield _at((*path, "change", name), "unknown knob", nearest(name, known), tuple(sorted(known)))


def _values_out_of_range(parts: _Parts) -> Iterator[tuple[KeyPath, Problem]]:
    if not parts.knobs_are_complete:
        return
    knobs = tuple(knob for _, knob in parts.knobs)
    names = [knob.name for knob in knobs]
    # Made without checks: only its table of knobs is asked.
    space = SearchSpace.model_construct(name="", engine="", about="", knobs=knobs, baseline={})
    places: list[tuple[KeyPath, Any]] = [(("baseline",), parts.data.get("baseline"))]
    for index, recipe in enumerate(_list(parts.data.get("recipes"))):
        places.append((("recipes", index, "values"), recipe.get("values") if isinstance(recipe, dict) else None))
    for where, values in places:
        if isinstance(values, dict):
            plain = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
            for problem in space.problems(plain):
                if problem.key not in plain and where != ("baseline",):
                    continue  # a recipe is laid over the baseline
                path = (*where, problem.key)
                mend = nearest(problem.key, names) if problem.key not in names else problem.mend
                yield _at(path, problem.message, mend, problem.allowed)
