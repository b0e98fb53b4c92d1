"""Body of `autotune measure` and `autotune parity`. Loads are sent by the workers, so theirs are the programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence


def become(module: str, options: Mapping[str, object], several: Mapping[str, Sequence[str]] | None = None) -> None:
    """Replace this process by `python -m workers.MODULE`; the answer and its exit code are the other program's.

    Options by name; one that is None or False is left out, one that is True has no value. Those of `several` are said
    once for each value. A value is never taken for an option.
    """
    argv = [sys.executable, "-m", f"workers.{module}"]
    for name, value in options.items():
        if value is True:
            argv.append(f"--{_dashed(name)}")
        elif value is not None and value is not False:
            argv.append(f"--{_dashed(name)}={value}")
    argv += [f"--{_dashed(name)}={value}" for name, values in (several or {}).items() for value in values]
    os.execv(sys.executable, argv)  # noqa: S606  # no shell is what is wanted


def _dashed(name: str) -> str:
    return name.replace("_", "-")
