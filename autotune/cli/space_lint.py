"""Body of `autotune space lint`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from autotune.cli.complaint import REFUSED
from autotune.cli.tables import print_json
from autotune.documents import file_text
from autotune.documents.space_file import space_of
from autotune.errors import InvalidSpace

DONE = 0


def lint(file: Path, *, as_json: bool) -> int:
    """Print every problem of the file with its line. Gives 0 when there is none, else 1.

    Raises InvalidRequest, for exit code 2, when the file can't be read at all.
    """
    text = file_text(file)
    try:
        space = space_of(text, file)
    except InvalidSpace as error:
        if as_json:
            print_json({"file": str(file), "problems": [asdict(problem) for problem in error.problems]})
        else:
            typer.echo("\n".join([*map(str, error.problems), error.message]))
        return REFUSED
    if as_json:
        counts = {"knobs": len(space.knobs), "rules": len(space.rules)}
        print_json({"file": str(file), "name": space.name, **counts, "problems": []})
    else:
        typer.echo(f"{file}: {_count(len(space.knobs), 'knob')}, {_count(len(space.rules), 'rule')}: no problems")
    return DONE


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
