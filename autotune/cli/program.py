"""Commands whose work is done by a program of another package: this process becomes that program."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def become(
    module: str,
    options: Mapping[str, object],
    several: Mapping[str, Sequence[str]] | None = None,
    operands: Sequence[Path] = (),
) -> None:
    """Replace this process by `python -m MODULE`: signals go to it, the answer and its exit code are its own.

    Options by name; one that is None or False is left out, one that is True has no value. Those of `several` are said
    once for each value. Neither a value nor an operand is ever taken for an option.
    """
    argv = [sys.executable, "-m", module]
    for name, value in options.items():
        if value is True:
            argv.append(f"--{_dashed(name)}")
        elif value is not None and value is not False:
            argv.append(f"--{_dashed(name)}={value}")
    argv += [f"--{_dashed(name)}={value}" for name, values in (several or {}).items() for value in values]
    argv += ["--", *map(str, operands)] if operands else []
    os.execv(sys.executable, argv)  # noqa: S606  # no shell is what is wanted


def _dashed(name: str) -> str:
    return name.replace("_", "-")
