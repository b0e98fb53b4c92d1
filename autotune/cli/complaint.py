"""Tells on stderr what went wrong."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from autotune.errors import AutotuneError, InvalidRequest

REFUSED = 1
WRONG_USE = 2


def complain(error: AutotuneError, *, as_json: bool) -> int:
    """Print the error with all its problems; gives the exit code."""
    problems = error.problems if isinstance(error, InvalidRequest) else ()
    if as_json:
        body = {"error": type(error).__name__, "detail": error.message, "problems": [asdict(p) for p in problems]}
        typer.echo(json.dumps(body, ensure_ascii=False), err=True)
    else:
        typer.echo(f"autotune: {error.message}", err=True)
        for problem in problems:
            typer.echo(f"  {problem}", err=True)
    return WRONG_USE if isinstance(error, InvalidRequest) else REFUSED
