"""Bodies of `autotune space ...`."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import typer

from autotune.cli.answers import SpaceLine
from autotune.cli.client import Client
from autotune.cli.tables import NOTHING, print_json, shortened, table
from autotune.domain.export import setting_in_words
from autotune.domain.knobs import EnvFragment, EnvVar, Flag, JsonPath, Landing, Preload, Switch
from autotune.domain.space import SearchSpace


def listing(url: str, *, as_json: bool) -> None:
    """The spaces that the server knows."""
    with Client(url) as client:
        answer = client.get("/spaces")
        items = answer.get("items", []) if isinstance(answer, dict) else answer
        lines = [client.understood(SpaceLine, item) for item in items]
    if as_json:
        print_json(answer)
        return
    rows = [
        [s.name, s.engine, s.chip or NOTHING, _count(s.knobs), _count(s.recipes), shortened(s.about)] for s in lines
    ]
    head = ["name", "engine", "chip", "knobs", "recipes", "about"]
    typer.echo(table(head, rows, right=(3, 4)) if rows else "no search spaces")


def show(url: str, name: str, *, as_json: bool) -> None:
    """One space: its knobs, rules and recipes."""
    with Client(url) as client:
        answer = client.get(f"/spaces/{quote(name, safe='')}")
        space = client.understood(SearchSpace, answer)
    if as_json:
        print_json(answer)
    else:
        typer.echo("\n".join(_in_words(space)))


def _in_words(space: SearchSpace) -> list[str]:
    rows = [
        [
            knob.name,
            shortened(knob.describe(), 48),
            setting_in_words(space.baseline.get(knob.name)),
            _place(knob.lands),
            ("may change numbers: " if knob.risk else "") + knob.about,
        ]
        for knob in space.knobs
    ]
    chip = f" on {space.chip}" if space.chip else ""
    lines = [f"{space.name}: {space.engine}{chip}", space.about, ""]
    lines += table(["knob", "values", "baseline", "lands in", "about"], rows).splitlines()
    for title, entries in (
        ("rules", [[f"  {r.name}", str(r.severity), r.why] for r in space.rules]),
        ("recipes", [[f"  {r.name}", _values(space, r.values), r.about] for r in space.recipes]),
    ):
        lines += ["", f"{title}:", *table(["", "", ""], entries).splitlines()[1:]] if entries else []
    return lines


def _values(space: SearchSpace, values: dict[str, Any]) -> str:
    changed = {k: v for k, v in values.items() if v != space.baseline.get(k)}
    return ", ".join(f"{k}={v if isinstance(v, str) else setting_in_words(v)}" for k, v in changed.items())


def _place(lands: Landing) -> str:
    match lands:
        case EnvVar():
            return lands.name
        case EnvFragment():
            return f"{lands.name} {lands.key}"
        case Preload():
            return "LD_PRELOAD"
        case Flag():
            return lands.flag
        case Switch():
            return lands.on or lands.off
        case JsonPath():
            return f"{lands.flag} {lands.path}"


def _count(number: int | None) -> str:
    return NOTHING if number is None else str(number)
