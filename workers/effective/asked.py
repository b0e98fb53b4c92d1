"""The settings of a launch plan under the names that effective configurations use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import RolePlan

PRELOAD = "LD_PRELOAD"
ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_SYNONYMS = {("nextn", "eagle")}  # SGLang prints its own name for a model's own draft layers
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None, "null": None}


def asked_settings(plan: RolePlan) -> dict[str, KnobValue]:
    """Every setting of the plan; of a repeated flag the last one, as argparse takes it. Total: any plan is read."""
    found: dict[str, KnobValue] = {}
    for name, text in plan.env.items():
        if name == ALLOCATOR:
            found |= {f"env {name}:{key}": value for key, value in fragments(text).items()}
        else:
            found[f"env {name}"] = scalar(text)
    if plan.preload:
        found[PRELOAD] = ",".join(plan.preload)
    for flag, words in _flags(plan.argv):
        content = _json_object(words[0]) if len(words) == 1 else None
        if content is not None:
            found |= {f"{flag} {path}": value for path, value in _leaves(content, "")}
        elif len(words) > 1:
            found[flag] = tuple(value for word in words if (value := scalar(word)) is not None)
        else:
            found[flag] = scalar(words[0]) if words else True
    return found


def scalar(text: str) -> bool | int | float | str | None:
    """The value that a word means: a number, a truth value, nothing, or the word itself."""
    plain = text.strip().strip("'\"")
    if plain.lower() in _WORDS:
        return _WORDS[plain.lower()]
    if _NUMBER.fullmatch(plain) and len(plain) < 16:
        return int(plain) if plain.lstrip("-").isdecimal() else _finite(plain)
    return plain


def fragments(text: str) -> dict[str, bool | int | float | str | None]:
    """`a:1,b:True` as a mapping."""
    pairs = (part.partition(":") for part in text.split(",") if part.strip())
    return {key.strip(): scalar(value) for key, _, value in pairs}


def same(asked: KnobValue, got: KnobValue) -> bool:
    """Whether two spellings mean one value: 1 and True, `auto` and `AUTO`, a list in another order."""
    if (_plain(asked), _plain(got)) in _SYNONYMS:
        return True
    if isinstance(asked, tuple) or isinstance(got, tuple):
        first, second = (v if isinstance(v, tuple) else (v,) for v in (asked, got))
        return {_plain(v) for v in first} == {_plain(v) for v in second}
    return _plain(asked) == _plain(got)


def _plain(value: KnobValue) -> object:
    return value.casefold() if isinstance(value, str) else value


def _finite(text: str) -> float | str:
    value = float(text)
    return value if abs(value) < float("inf") else text


def _flags(argv: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    flag: str | None = None
    words: list[str] = []
    for word in argv:
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            if flag is not None:
                yield flag, words
            name, equals, value = word.partition("=")
            flag, words = name.replace("_", "-"), [value] if equals else []
        else:
            words.append(word)
    if flag is not None:
        yield flag, words


def _json_object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _leaves(content: dict[str, Any], before: str) -> Iterator[tuple[str, KnobValue]]:
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{key}.")
        elif isinstance(value, list):
            yield f"{before}{key}", tuple(v for v in value if isinstance(v, bool | int | float | str))
        elif value is None or isinstance(value, bool | int | float | str):
            yield f"{before}{key}", value
