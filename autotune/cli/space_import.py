"""Body of `autotune space import`."""

from __future__ import annotations

from pathlib import Path

import typer

from autotune.cli.choices import SpaceForm
from autotune.cli.exports import READABLE, write
from autotune.cli.tables import print_json
from autotune.documents import file_text
from autotune.documents.space_file import name_in_file
from autotune.documents.space_import import Form, import_space
from autotune.errors import InvalidRequest, Problem


def import_file(
    file: Path, form: SpaceForm, name: str | None, engine: str, output: Path | None, *, as_json: bool
) -> None:
    """Write another tool's file as a space, to `output` or to stdout.

    Raises InvalidRequest for what a space can't hold, and for a name that does not go with the file's.
    """
    expected = None if output is None else name_in_file(output)
    if expected is not None and name is not None and name != expected:
        message = f"is {name}, but the file is to be named {output and output.name}"
        raise InvalidRequest("a space is named like its file", [Problem("--name", message, allowed=(expected,))])
    imported = import_space(file_text(file), Form(form), file, name or expected, engine)
    if output is not None:
        write(output, imported.text, READABLE)
    if as_json:
        print_json(
            {
                "name": imported.space.name,
                "format": form,
                "knobs": len(imported.space.knobs),
                "left_out": imported.left_out,
                "output": output and str(output),
                "content": imported.text,
            }
        )
        return
    for note in imported.left_out:
        typer.echo(f"left out: {note}", err=True)
    if output is None:
        typer.echo(imported.text, nl=False)
    else:
        typer.echo(f"wrote {output}: {imported.space.name}, {len(imported.space.knobs)} knobs", err=True)
