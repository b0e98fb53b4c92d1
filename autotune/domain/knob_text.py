"""From the text or JSON value of a setting to a knob's value: the way back from `launch_plan`."""

from __future__ import annotations

import json
import math
from typing import Any

from autotune.domain.knobs import (
    BooleanKind,
    ChoiceKind,
    FloatKind,
    IntegerKind,
    Kind,
    KnobValue,
    ListKind,
    Scalar,
)
from autotune.domain.launch_settings import Setting

_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


def value_of(setting: Setting, kind: Kind) -> KnobValue:
    """The value that the setting gives to a knob of this kind, within its range or not.

    Raises ValueError when it is no value of such a kind at all.
    """
    match kind:
        case ListKind():
            return _in_order(_items(setting), kind)
        case ChoiceKind():
            return _choice(setting, kind)
        case BooleanKind() | IntegerKind() | FloatKind():
            return _scalar(_one(setting), kind)


def as_written(setting: Setting) -> KnobValue:
    """The value without knowing what it should be: numbers, true and false as such, the rest as text."""
    if setting.typed:
        return _frozen(setting.content)
    if not setting.words:
        return not setting.negated
    read = [_plain(word) for word in setting.words]
    return read[0] if len(read) == 1 else tuple(read)


def _items(setting: Setting) -> list[Any]:
    if setting.typed:
        return setting.content if isinstance(setting.content, list) else [setting.content]
    words = list(setting.words)
    if len(words) == 1 and words[0].startswith("["):
        try:
            listed = json.loads(words[0])
        except ValueError:
            return words
        return listed if isinstance(listed, list) else words
    return words[0].replace(",", " ").split() if len(words) == 1 else words


def _one(setting: Setting) -> Any:
    if setting.typed:
        return setting.content
    if not setting.words:
        return not setting.negated
    if len(setting.words) > 1:
        raise ValueError("several values stand where one is taken")
    return setting.words[0]


def _scalar(given: Any, kind: BooleanKind | IntegerKind | FloatKind) -> Scalar:
    if isinstance(given, list | dict) or given is None:
        raise ValueError(f"{json.dumps(given)} is no single value")
    word = str(given).strip()
    lower = word.lower()
    if isinstance(kind, BooleanKind):
        if lower in _TRUE or lower in _FALSE:
            return lower in _TRUE
        raise ValueError(f"{word} is not true or false")
    if isinstance(given, bool) or lower in ("true", "false"):
        return int(lower == "true")
    try:
        if isinstance(kind, FloatKind):
            return int(word) if word.lstrip("+-").isdigit() else float(word)
        number = float(word) if not word.lstrip("+-").isdigit() else int(word)
        if number != int(number):
            raise ValueError
        return int(number)
    except (ValueError, OverflowError):
        raise ValueError(f"{word} is not a number of this kind") from None


def _choice(setting: Setting, kind: ChoiceKind) -> KnobValue:
    written = as_written(setting)
    exact = [v for v in kind.values if _same(v, written)]
    if exact:
        return exact[0]
    words = [_word(item) for item in _items(setting)] or [_word(not setting.negated)]
    for value in kind.values:
        items = value if isinstance(value, tuple) else (value,)
        if len(items) == len(words) and all(_means(word, item) for word, item in zip(words, items, strict=True)):
            return value
    for value in kind.values:  # a text that holds blanks or commas of its own
        if isinstance(value, str) and value == setting.text:
            return value
    return written


def _in_order(given: list[Any], kind: ListKind) -> KnobValue:
    """The items in the order in which the knob lists them: to the engine the order is all the same."""
    found: list[Scalar] = []
    strange: list[Scalar] = []
    for raw in given:
        word = _word(raw)
        item = next((item for item in kind.items if _same(item, raw)), None)
        if item is None:
            item = next((item for item in kind.items if _means(word, item)), None)
        if item is None:
            strange.append(_plain(word))
        else:
            found.append(item)
    if strange:
        return (*found, *strange)
    return tuple(item for item in kind.items if any(_same(item, other) for other in found))


def _means(word: str, value: Scalar) -> bool:
    """Whether the word is a way to write the value."""
    if isinstance(value, bool):
        return word.lower() in (_TRUE if value else _FALSE)
    if isinstance(value, str):
        return word == value or (value in ("true", "false") and word.lower() == value)
    if word.lower() in ("true", "false"):
        return value == int(word.lower() == "true")
    try:
        return float(word) == value
    except ValueError:
        return False


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _word(value: Any) -> str:
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _plain(word: str) -> Scalar:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for read in (int, float) if "_" not in word else ():
        try:
            number = read(word)
        except ValueError:
            continue
        return number if math.isfinite(number) else word
    return word


def _frozen(content: Any) -> KnobValue:
    if isinstance(content, list):
        plain = all(_is_finite(item) for item in content)
        return tuple(content) if plain else json.dumps(content)
    if isinstance(content, dict):
        return json.dumps(content, separators=(",", ":"))
    return content if _is_finite(content) else None if content is None else str(content)


def _is_finite(value: Any) -> bool:
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
