"""Bodies of `autotune space list` and `autotune space show`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from autotune.cli.answers import SpaceLine
from autotune.cli.client import Client
from autotune.cli.space_source import space_from
from autotune.cli.space_table import in_words
from autotune.cli.tables import NOTHING, print_json, shortened, table


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


def show(
    url: str, name_or_path: str, stack: str | None, include: Sequence[str], study: Path | None, *, as_json: bool
) -> None:
    """One space: its knobs, rules and recipes; with a stack, knobs to include or a study, its instance."""
    space = space_from(url, name_or_path)
    if stack is not None or include or study is not None:
        from autotune.cli.space_instance import show_instance

        show_instance(space, stack, include, study, as_json=as_json)
    elif as_json:
        print_json(space.model_dump(mode="json"))
    else:
        typer.echo("\n".join(in_words(space)))


def _count(number: int | None) -> str:
    return NOTHING if number is None else str(number)
