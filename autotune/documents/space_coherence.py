"""Whether the parts of a space file fit each other, said of the very line.

`SearchSpace` refuses an incoherent space too, but names one fault at a time and no line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from autotune.documents.problems import nearest
from autotune.documents.space_keys import faulty_keys
from autotune.documents.space_parts import Found, Parts, found_at, listed
from autotune.documents.yaml_text import Document, KeyPath
from autotune.domain import expression
from autotune.domain.deployment import Deployment, facts
from autotune.domain.knobs import ChoiceKind, EnvFragment, EnvVar, Knob, Landing, ListKind
from autotune.domain.space import SearchSpace
from autotune.domain.stack import EVERYWHERE, Needs
from autotune.domain.template import is_denied_env
from autotune.domain.workload import LoadLevel, Workload
from autotune.errors import Problem

_CHIP = re.compile(r"[0-9A-Z]+")


def incoherences(document: Document) -> list[Problem]:
    """Every fault between the parts that can be read; parts with faults of their own are left out."""
    if not isinstance(document.data, dict):
        return []
    parts = Parts(document.data)
    problems = [
        *_broken_expressions(parts),
        *_denied_env(parts),
        *_shared_landings(parts),
        *_strangers(parts),
        *_faulty_kinds(parts),
        *_faulty_limits(parts),
        *_chips_in_lower_case(parts),
        *_values_out_of_range(parts),
        *faulty_keys(parts),
    ]
    return [replace(p, line=document.line_of(path), file=document.file) for path, p in problems]


@cache
def _known_facts() -> frozenset[str]:
    workload = Workload(prompt_tokens=1, output_tokens=2, levels=(LoadLevel(concurrency=1, requests=1),))
    return frozenset(facts(Deployment(template="any", model="any"), workload))


def _expressions(parts: Parts) -> Iterator[tuple[KeyPath, str]]:
    for path, knob in parts.knobs:
        if knob.when:
            yield (*path, "when"), knob.when
    for path, setting in parts.derived:
        yield (*path, "value"), setting.value
        if setting.when:
            yield (*path, "when"), setting.when
    for path, rule in parts.rules:
        yield (*path, "require"), rule.require
        for name, text in rule.change.items():
            yield (*path, "change", name), text


def _broken_expressions(parts: Parts) -> Iterator[Found]:
    known = {"knobs": frozenset(parts.knob_names), "facts": _known_facts()}
    for path, text in _expressions(parts):
        try:
            expression.check(text)
        except expression.ExpressionError as error:
            yield found_at(path, str(error), "write a CEL expression over knobs.NAME and facts.NAME")
            continue
        for root, names in known.items():
            if root == "knobs" and not parts.knobs_are_complete:
                continue
            for name in sorted(expression.mentioned(text, root) - names):
                yield found_at(path, f"unknown name {root}.{name}", nearest(name, names), tuple(sorted(names)))


def _denied_env(parts: Parts) -> Iterator[Found]:
    for path, lands in _landings(parts):
        if isinstance(lands, EnvVar | EnvFragment) and is_denied_env(lands.name):
            message = f"a space may not set {lands.name}"
            yield found_at((*path, "lands", "name"), message, "the launch template of the host sets it")


def _landings(parts: Parts) -> Iterator[tuple[KeyPath, Landing]]:
    for path, knob in parts.knobs:
        yield path, knob.lands
    for path, fixed in parts.fixed:
        yield path, fixed.lands
    for path, derived in parts.derived:
        yield path, derived.lands


def _shared_landings(parts: Parts) -> Iterator[Found]:
    """Two settings that are always there must not land in one place; with conditions they may take turns."""
    always: list[tuple[KeyPath, str, str, Landing, Needs, tuple[str, ...]]] = []
    always += [(p, f"knob {k.name}", k.role, k.lands, k.needs, k.excludes) for p, k in parts.knobs if k.when is None]
    always += [(p, "a fixed setting", f.role, f.lands, f.needs, ()) for p, f in parts.fixed]
    always += [(p, f"derived {d.name}", d.role, d.lands, d.needs, ()) for p, d in parts.derived if d.when is None]
    first: dict[tuple[str, str], tuple[str, Needs, tuple[str, ...]]] = {}
    whole = {(role, lands.name): said for _, said, role, lands, _, _ in always if isinstance(lands, EnvVar)}
    for path, said, role, lands, needs, excludes in always:
        place = (role, lands.model_dump_json())
        other, others_needs, others_excludes = first.setdefault(place, (said, needs, excludes))
        take_turns = (
            (needs != others_needs and EVERYWHERE not in (needs, others_needs))
            or other.removeprefix("knob ") in excludes
            or said.removeprefix("knob ") in others_excludes
        )
        if other != said and not take_turns:
            yield found_at((*path, "lands"), f"{other} lands in the same place", "give each a place of its own")
        if isinstance(lands, EnvFragment) and (role, lands.name) in whole:
            message = f"{whole[role, lands.name]} sets the whole of {lands.name}"
            yield found_at((*path, "lands"), message, "set it by parts, or as a whole")


def _strangers(parts: Parts) -> Iterator[Found]:
    """Names of knobs and derived settings that there are none of."""
    known = parts.knob_names
    if parts.knobs_are_complete:
        for path, rule in parts.rules:
            for name in rule.change:
                if name not in known:
                    yield found_at((*path, "change", name), "unknown knob", nearest(name, known), known)
        for path, knob in parts.knobs:
            for index, name in enumerate(knob.excludes):
                here = (*path, "excludes", index)
                if name == knob.name:
                    yield found_at(here, "a knob can't exclude itself", "remove it")
                elif name not in known:
                    yield found_at(here, f"unknown knob {name}", nearest(name, known), known)
    if parts.derived_are_complete:
        settings = tuple(sorted(setting.name for _, setting in parts.derived))
        for path, rule in parts.rules:
            if rule.derived is not None and rule.derived not in settings:
                hint = nearest(rule.derived, settings)
                yield found_at((*path, "derived"), f"unknown derived setting {rule.derived}", hint, settings)


def _faulty_kinds(parts: Parts) -> Iterator[Found]:
    for path, knob in parts.knobs:
        kind = knob.type
        values = kind.values if isinstance(kind, ChoiceKind) else kind.items if isinstance(kind, ListKind) else ()
        key = "values" if isinstance(kind, ChoiceKind) else "items"
        for index, value in enumerate(values):
            if any(type(v) is type(value) and v == value for v in values[:index]):
                yield found_at((*path, "type", key, index), f"{value!r} is listed twice", "remove one")
        if isinstance(kind, ListKind) and kind.min_length > min(kind.max_length, len(kind.items)):
            at_most = min(kind.max_length, len(kind.items))
            text = f"is {kind.min_length}, but a list can have {at_most} items at most"
            yield found_at((*path, "type", "min_length"), text, "lower it or list more items")
        if knob.proof is not None:
            try:
                re.compile(knob.proof)
            except re.error as error:
                yield found_at((*path, "proof"), f"is no regular expression: {error}", "escape its brackets")


def _faulty_limits(parts: Parts) -> Iterator[Found]:
    for path, knob in parts.knobs:
        for index, limited in enumerate(knob.limited):
            here = (*path, "limited", index)
            if not isinstance(knob.type, ChoiceKind):
                yield found_at(here, "only the values of a choice can be limited", "limit the knob by its `needs`")
                continue
            for at, value in enumerate(limited.values):
                if not knob.type.contains(value):
                    allowed = tuple(map(str, knob.type.values))
                    text = f"{value!r} is not a value of this knob"
                    yield found_at((*here, "values", at), text, nearest(str(value), allowed), allowed)
            if limited.needs == EVERYWHERE:
                yield found_at((*here, "needs"), "limits nothing", "name a version range or chips")


def _chips_in_lower_case(parts: Parts) -> Iterator[Found]:
    for path, needs in _needs(parts):
        for index, chip in enumerate(needs.chips):
            if not _CHIP.fullmatch(chip):
                here = (*path, "needs", "chips", index)
                yield found_at(here, f"{chip!r} is not of the right form", "", ("910B", "910C", "950DT, and the like"))


def _needs(parts: Parts) -> Iterator[tuple[KeyPath, Needs]]:
    for path, knob in parts.knobs:
        yield path, knob.needs
        for index, limited in enumerate(knob.limited):
            yield (*path, "limited", index), limited.needs
    for items in (parts.fixed, parts.derived, parts.rules, parts.renames, parts.dead):
        for path, item in items:
            yield path, item.needs


def _values_out_of_range(parts: Parts) -> Iterator[Found]:
    if not parts.knobs_are_complete:
        return
    knobs: tuple[Knob, ...] = tuple(knob for _, knob in parts.knobs)
    names = [knob.name for knob in knobs]
    # Made without checks: only its table of knobs is asked.
    space = SearchSpace.model_construct(name="", engine="", about="", knobs=knobs, baseline={})
    places: list[tuple[KeyPath, Any]] = [
        (("baseline",), parts.data.get("baseline")),
        (("hold",), parts.data.get("hold")),
    ]
    for index, recipe in enumerate(listed(parts.data.get("recipes"))):
        places.append((("recipes", index, "values"), recipe.get("values") if isinstance(recipe, dict) else None))
    for where, values in places:
        if isinstance(values, dict):
            plain = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
            for problem in space.problems(plain):
                if problem.key not in plain and where != ("baseline",):
                    continue  # a recipe is laid over the baseline
                path = (*where, problem.key)
                mend = nearest(problem.key, names) if problem.key not in names else problem.mend
                yield found_at(path, problem.message, mend, problem.allowed)
