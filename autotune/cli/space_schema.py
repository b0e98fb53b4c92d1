"""Body of `autotune space schema`."""

from __future__ import annotations

import json
from typing import Any

import typer

from autotune.domain.space import SearchSpace


def schema() -> dict[str, Any]:
    """The JSON Schema of a space file, as editors read it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **SearchSpace.model_json_schema(mode="validation"),
        "title": "Search space",
    }


def text(*, on_one_line: bool = False) -> str:
    """The schema as it is kept in files."""
    return json.dumps(schema(), indent=None if on_one_line else 1, ensure_ascii=False)


def print_schema(*, as_json: bool) -> None:
    """The schema alone on stdout, for programs on one line."""
    typer.echo(text(on_one_line=as_json))
