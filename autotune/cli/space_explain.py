"""Body of `autotune space explain`: everything that a space knows of one knob."""

from __future__ import annotations

from typing import Any

import typer

from autotune.cli.space_source import space_from
from autotune.cli.space_words import knob_place, needs_in_words, value_in_words
from autotune.cli.tables import print_json
from autotune.documents import nearest
from autotune.domain.expression import mentioned
from autotune.domain.knobs import Cost, Knob
from autotune.domain.space import Rule, SearchSpace
from autotune.errors import InvalidRequest, Problem

TIERS = {
    1: "1: searched",
    2: "2: searched",
    3: "3: searched only when it is included by name",
    4: "4: never searched",
}


def explain(url: str, name_or_path: str, knob_name: str, *, as_json: bool) -> None:
    """Raises InvalidRequest for a knob that the space does not have."""
    space = space_from(url, name_or_path)
    knob = space.by_name.get(knob_name)
    if knob is None:
        known = tuple(sorted(space.by_name))
        problem = Problem("knob", f"unknown knob {knob_name}", nearest(knob_name, known), known)
        raise InvalidRequest(f"the space {space.name} has no knob {knob_name}", [problem])
    rules = rules_about(space, knob)
    if as_json:
        print_json(
            {
                "space": space.name,
                "knob": knob.model_dump(mode="json"),
                "place": knob_place(knob),
                "baseline": space.baseline.get(knob.name),
                "rules": [rule.model_dump(mode="json") for rule in rules],
                "conditions_on": conditions_on(space, knob),
                "excludes": exclusive(space, knob),
                "moves_with": moves_with(space, knob),
                "derived": derived_from(space, knob),
            }
        )
        return
    facts = [(title, text) for title, text in _facts(space, knob) if text]
    width = max(len(title) for title, _ in facts)
    lines = [f"{knob.name}: {knob.about}", "", *(f"{title:<{width}}  {text}" for title, text in facts)]
    for rule in rules:
        lines += ["", f"rule {rule.name} ({rule.severity}): {rule.require}", f"  why: {rule.why}"]
        lines += [f"  mend: {rule.mend}"] if rule.mend else []
        lines += [f"  source: {rule.source}"] if rule.source else []
    typer.echo("\n".join(lines))


def _facts(space: SearchSpace, knob: Knob) -> list[tuple[str, Any]]:
    limited = [
        f"{', '.join(map(value_in_words, limit.values))} needs {needs_in_words(limit.needs)}" for limit in knob.limited
    ]
    return [
        ("values", f"{knob.describe()}{f' ({knob.unit})' if knob.unit else ''}"),
        ("limited", "; ".join(limited)),
        ("baseline", value_in_words(space.baseline.get(knob.name))),
        ("when unset", knob.default),
        ("lands in", knob_place(knob)),
        ("tier", TIERS[knob.tier]),
        ("active when", knob.when or ""),
        ("exists with", needs_in_words(knob.needs)),
        ("effect", knob.effect),
        ("numbers", "a change may alter what the model computes" if knob.risk else ""),
        ("cost", "kernels are compiled anew" if knob.cost is Cost.REBUILD else ""),
        ("evidence", knob.evidence),
        ("proof", f"the log matches {knob.proof}" if knob.proof else ""),
        ("excludes", ", ".join(exclusive(space, knob))),
        ("moves with", ", ".join(moves_with(space, knob))),
        ("condition of", ", ".join(conditions_on(space, knob))),
        ("sets also", ", ".join(derived_from(space, knob))),
        ("source", knob.source),
    ]


def rules_about(space: SearchSpace, knob: Knob) -> list[Rule]:
    """The rules that ask for the knob or change it."""
    return [
        rule
        for rule in space.rules
        if knob.name in rule.change
        or any(knob.name in mentioned(text, "knobs") for text in (rule.require, *rule.change.values()))
    ]


def exclusive(space: SearchSpace, knob: Knob) -> list[str]:
    """The knobs that may not be set beside this one, whichever of the two says so."""
    return [k.name for k in space.knobs if k.name in knob.excludes or knob.name in k.excludes]


def moves_with(space: SearchSpace, knob: Knob) -> list[str]:
    """The other knobs of its group."""
    return [k.name for k in space.knobs if knob.group and k.group == knob.group and k.name != knob.name]


def conditions_on(space: SearchSpace, knob: Knob) -> list[str]:
    """The knobs that are active only for some of its values."""
    return [k.name for k in space.knobs if k.when and knob.name in mentioned(k.when, "knobs")]


def derived_from(space: SearchSpace, knob: Knob) -> list[str]:
    """The derived settings that depend on it."""
    return [
        d.name
        for d in space.derived
        if any(knob.name in mentioned(text, "knobs") for text in (d.value, d.when) if text)
    ]
