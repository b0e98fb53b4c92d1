"""Body of `autotune export`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import typer

from autotune.cli.choices import Format
from autotune.cli.client import Client
from autotune.cli.tables import print_json
from autotune.domain.export import to_env, to_json, to_sh
from autotune.domain.recipe import Recipe
from autotune.errors import InvalidRequest, Problem

EXECUTABLE = 0o755
READABLE = 0o644


def export_recipe(url: str, study_id: int, form: Format, output: Path | None, *, baseline: bool, as_json: bool) -> None:
    """Write the recipe to a file or to stdout; with `as_json`, as `{"format": ..., "content": ...}`."""
    with Client(url) as client:
        recipe = client.read(Recipe, f"/studies/{study_id}/recipe")
    text = rendered(recipe, baseline=baseline)[form]
    if output is not None:
        write(output, text, EXECUTABLE if form is Format.SH else READABLE)
    if as_json:
        content = json.loads(text) if form is Format.JSON else text
        print_json(
            {"format": form, "confirmed": recipe.confirmed, "output": output and str(output), "content": content}
        )
    elif output is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {output} ({'confirmed' if recipe.confirmed else 'NOT PROVEN: the baseline'})", err=True)


def rendered(recipe: Recipe, *, baseline: bool = False) -> Mapping[str, str]:
    """The recipe in every form. JSON holds baseline and best alike."""
    return {
        "sh": to_sh(recipe, baseline=baseline),
        "env": to_env(recipe, baseline=baseline),
        "json": to_json(recipe),
    }


def write(path: Path, text: str, mode: int) -> None:
    """Replace the file as a whole. Raises InvalidRequest when it can't be written."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidRequest(
            f"{path} can't be written: {reason}", [Problem("output", reason, file=str(path))]
        ) from error
