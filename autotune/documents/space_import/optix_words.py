"""The extra words of a command line in which OptiX puts its fields as `$NAME`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from autotune.documents.space_import.records import Record, Refused, is_owned, scalar_of, settings_of
from autotune.domain.knobs import Flag, JsonPath, KnobValue, Landing, Switch


def split(text: str, key: str) -> list[str]:
    """The words as a shell would part them. Raises Refused for quotes that do not close."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Refused((key,), f"can't be parted into words: {error}", "close the quotes") from error


def record_of(words: list[str], key: str) -> Record:
    """What words without fields set; parameters of the launch template are passed over."""
    record: Record = {}
    for flag, values in options(words, ()):
        if not flag:
            raise Refused((key,), f"{values[0]!r} belongs to no option", "write it after its --option")
        if is_owned(flag):
            continue
        if len(values) == 1 and values[0].startswith("{"):
            record.update((la, v) for la, v in settings_of(flag.lstrip("-"), values[0], (key,)) if v is not None)
        elif values:
            record[Flag(flag=flag)] = scalar_of(values[0]) if len(values) == 1 else _list(values)
        else:
            record[Switch(on=flag)] = True
    return record


def options(words: list[str], alone: Collection[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option with its values; a word of `alone` stands for itself, as an option without a name."""
    flag, values = "", list[str]()
    for word in words:
        starts = re.match(r"--?[A-Za-z]", word) is not None
        if word in alone or starts or (word and not flag):
            if flag:
                yield flag, values
            flag, values = "", []
        if word in alone or not (starts or flag):
            yield "", [word]
        elif starts:
            flag, sign, value = word.partition("=")
            values = [value] if sign else []
        else:
            values.append(word)
    if flag:
        yield flag, values


def places_of(words: list[str], alone: Collection[str], key: str) -> tuple[dict[str, Landing], list[str]]:
    """Where each `$NAME` lands, and the words that hold none. Raises Refused for a name inside other text."""
    places: dict[str, Landing] = {}
    rest: list[str] = []
    for flag, values in options(words, alone):
        if not flag:
            continue
        value = values[0] if values else ""
        if "$" not in " ".join(values):
            rest += [flag, *values]
        elif len(values) == 1 and re.fullmatch(r"\$\{?\w+\}?", value):
            places[_field(value)] = Flag(flag=flag)
        elif len(values) == 1 and value.startswith("{"):
            rest += [flag, json.dumps(_without_fields(flag, (), _object(value, key), places))]
        else:
            message = f"{flag} takes a field within other text: {' '.join(values)}"
            raise Refused((key,), message, "let the field be a whole value")
    return places, rest


def _without_fields(
    flag: str, path: tuple[str, ...], content: Mapping[str, Any], places: dict[str, Landing]
) -> dict[str, Any]:
    left: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            left[key] = _without_fields(flag, (*path, key), value, places)
        elif isinstance(value, str) and re.fullmatch(r"\$\{?\w+\}?", value):
            places[_field(value)] = JsonPath(flag=flag, path=".".join((*path, key)))
        else:
            left[key] = value
    return left


def _object(text: str, key: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except ValueError as error:
        raise Refused((key,), f"{text} is no JSON: {error}", 'put a field in quotes: "$NAME"') from error


def _field(text: str) -> str:
    return text.strip("${}").upper()


def _list(words: list[str]) -> KnobValue:
    return tuple(value for value in map(scalar_of, words) if isinstance(value, bool | int | float | str))
