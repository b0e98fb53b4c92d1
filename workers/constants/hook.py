"""The environment that has a server's constants set, and the proof that it happened."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.domain.knobs import KnobValue
from autotune.domain.template import CONSTANTS_VARIABLE
from autotune.errors import Problem

FOLDER = Path(__file__).with_name("site")  # an export names it too: it must not move
LONGEST = 16_384  # bytes; Linux takes 128 KiB for one variable

_TARGET = re.compile(r"(?P<package>[A-Za-z_]\w*)(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def constant_problems(constants: Mapping[str, KnobValue]) -> Iterator[Problem]:
    """Why the constants of a plan are refused, each with its key."""
    for target in constants:
        match = _TARGET.fullmatch(target)
        if match is None:
            yield Problem(key=f"constants.{target}", message="is not of the form package.module:NAME")
        elif match["package"] in sys.stdlib_module_names:
            # They decide what code runs (os.environ, subprocess), and most are imported before anything can be set.
            yield Problem(key=f"constants.{target}", message="belongs to Python itself, not to an engine")
    if len(_text(constants)) > LONGEST:
        yield Problem(key="constants", message=f"are longer than {LONGEST} bytes together")


def with_constants(env: Mapping[str, str], constants: Mapping[str, KnobValue]) -> dict[str, str]:
    """The environment with the import hook first on PYTHONPATH and what it sets; as it was without constants."""
    if all(value is None for value in constants.values()):
        return dict(env)
    path = os.pathsep.join([str(FOLDER), *filter(None, [env.get("PYTHONPATH")])])
    return {**env, "PYTHONPATH": path, CONSTANTS_VARIABLE: _text(constants)}


def unproven(constants: Mapping[str, KnobValue], log_text: str) -> tuple[str, ...]:
    """The constants that no process says it has set: the module was not imported, or not by a Python we reach.

    `python -I`, `-E` and `-S` ignore the hook, and so does a container that is not given the two variables.
    """
    return tuple(
        target
        for target, value in sorted(constants.items())
        if value is not None and f"autotune: set {target} from " not in log_text
    )


def _text(constants: Mapping[str, KnobValue]) -> str:
    settings = {target: value for target, value in sorted(constants.items()) if value is not None}
    text = json.dumps(settings, separators=(",", ":"))
    # Within a string a brace may look like a placeholder of an export.
    return "{" + text[1:].replace("{", r"\u007b")
