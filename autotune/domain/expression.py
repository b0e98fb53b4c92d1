"""Conditions, derived values and rules in CEL, the Common Expression Language.

An expression sees the names it is given and nothing else; it cannot call Python, loop without end or
change anything. A compiled rule takes about 7 us; nothing is ever passed to `eval`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import cel

from autotune.domain.knobs import KnobValue

MAX_LENGTH = 1000
MAX_MACROS = 3  # lists of facts hold at most 16 items: three nested macros stay below 5000 steps
NAMES = frozenset({"knobs", "facts"})
_MACRO = re.compile(r"\.(?:map|filter|all|exists|exists_one)\(\s*(\w+)\s*,")

_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")


class ExpressionError(ValueError):
    """The expression does not parse, uses an unknown name, or fails on these values."""


@lru_cache(maxsize=4096)
def _program(text: str) -> cel.Program:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"expression is longer than {MAX_LENGTH} characters")
    try:
        program = cel.compile(text)
    except ValueError as error:
        raise ExpressionError(str(error).splitlines()[0]) from error
    bound = _MACRO.findall(text)
    if len(bound) > MAX_MACROS:
        raise ExpressionError(f"expression has more than {MAX_MACROS} list macros")
    strangers = sorted(set(program.variables()) - NAMES - set(bound))
    if strangers:
        raise ExpressionError(f"unknown name {', '.join(strangers)} in {text!r}; only knobs and facts are known")
    return program


def check(text: str) -> None:
    """Raise ExpressionError when the text is not an expression over `knobs` and `facts`."""
    _program(text)


def mentioned(text: str, root: str) -> frozenset[str]:
    """The names that the expression takes from `knobs` or `facts`: `a` and `b` for `knobs.a + knobs.b`."""
    return frozenset(re.findall(rf"(?<![\w.]){root}\.(\w+)\b(?!\s*\()", _QUOTED.sub("", text)))


def evaluate(text: str, knobs: Mapping[str, KnobValue], facts: Mapping[str, Any]) -> Any:
    """The value of the expression; raises ExpressionError when it has none."""
    try:
        return _program(text).execute({"knobs": _plain(knobs, text, "knobs"), "facts": _plain(facts, text, "facts")})
    except (LookupError, TypeError, RuntimeError, ValueError, ArithmeticError) as error:
        raise ExpressionError(f"{text!r}: {error}") from error


def holds(text: str, knobs: Mapping[str, KnobValue], facts: Mapping[str, Any]) -> bool:
    """The truth of a condition; raises ExpressionError when it is not a boolean."""
    value = evaluate(text, knobs, facts)
    if not isinstance(value, bool):
        raise ExpressionError(f"{text!r} gives {value!r}, not true or false")
    return value


@lru_cache(maxsize=8192)
def _asked(text: str, root: str) -> frozenset[str] | None:
    """The only names that the expression can ask of `root`; None where it could ask for any."""
    bare = re.search(rf"(?<![\w.]){root}\b(?!\.\w+\b(?!\s*\())", _QUOTED.sub("", text))
    return None if bare else mentioned(text, root)


def _plain(values: Mapping[str, Any], text: str, root: str) -> dict[str, Any]:
    """What the expression may ask for: handing over 200 knobs takes longer than any rule."""
    asked = _asked(text, root)
    names = values.keys() if asked is None else [name for name in asked if name in values]
    return {n: list(v) if isinstance(v := values[n], tuple) else v for n in names}
