"""Combinations of settings: what each sets, and the knobs between which they differ."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotune.documents.space_import.draft import Draft, KnobDraft
from autotune.documents.yaml_text import KeyPath, dotted
from autotune.domain.knobs import BooleanKind, ChoiceKind, EnvVar, Flag, JsonPath, Kind, KnobValue, Landing, Switch
from autotune.domain.template import is_denied_env
from autotune.errors import Problem

Record = dict[Landing, KnobValue]
"""One combination; a setting that is not in it is unset."""

# The launch template of the host sets these.
OWNED = frozenset({"host", "port", "model", "served-model-name", "uds", "api-key", "model-tag"})
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*")


class Refused(Exception):
    """A setting that a space can't hold."""

    def __init__(self, path: KeyPath, message: str, mend: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(dotted(path) or "file", message, mend)


def settings_of(key: str, value: Any, path: KeyPath) -> Iterator[tuple[Landing, KnobValue]]:
    """What one parameter of a server sets: `max_num_seqs`, `compilation_config.level`, a dict for a JSON flag.

    Raises Refused for a name or a value that no landing place holds.
    """
    name, *inner = key.split(".")
    if not _NAME.fullmatch(name) or not all(inner) or key.endswith("+"):
        raise Refused(path, f"{key!r} is no parameter of a server", "write it as the server's long option")
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _json_object(value, path)
    if isinstance(value, Mapping):
        yield from _leaves(flag, inner, value, path)
    elif inner:
        yield JsonPath(flag=flag, path=".".join(inner)), _held(value, path)
    elif isinstance(value, bool):
        yield Switch(on=flag, off=f"--no-{flag[2:]}"), value
    else:
        yield Flag(flag=flag), _held(value, path)


def is_owned(key: str) -> bool:
    """Whether the launch template sets this parameter."""
    return key.replace("_", "-").lstrip("-") in OWNED


def add_knobs(draft: Draft, records: Sequence[Record], group: str | None = None) -> list[tuple[Landing, str]]:
    """A knob for each setting in which the records differ, a fixed setting for each in which they agree.

    The first record is the baseline. Gives the knobs' names by landing place. Raises Refused for a flag that
    is a switch in one record and takes a value in another.
    """
    landings = list(dict.fromkeys(lands for record in records for lands in record))
    _one_use_each(landings)
    added: list[tuple[Landing, str]] = []
    for lands in landings:
        values = distinct([record.get(lands) for record in records])
        given = tuple(value for value in values if value is not None)
        if isinstance(lands, EnvVar) and is_denied_env(lands.name):
            draft.notes.append(f"{lands.name}, which the launch template of the host sets")
            continue
        shown = Switch(on=lands.on) if isinstance(lands, Switch) and not any(v is False for v in given) else lands
        if len(values) == 1:
            draft.fixed += [(shown, given[0])] if given else []
            continue
        if given:
            both = len(given) == 2 and all(isinstance(value, bool) for value in given)
            kind: Kind = BooleanKind() if both else ChoiceKind(values=given)
            unset = len(given) < len(values)
            name = draft.fresh_name(shown)
            draft.knobs.append(KnobDraft(name, shown, kind, unset, records[0].get(lands), group))
            added.append((lands, name))
    return added


def slug(text: str) -> str:
    """A name of a space or a recipe: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "imported"


def distinct(values: Sequence[KnobValue]) -> list[KnobValue]:
    """In order of appearance; true, 1 and 1.0 are three values."""
    found: dict[str, KnobValue] = {}
    for value in values:
        found.setdefault(json.dumps(value), value)
    return list(found.values())


def scalar_of(word: str) -> KnobValue:
    """A word of a command line as the number that it is, else as text."""
    if re.fullmatch(r"-?[0-9]{1,15}", word) and str(int(word)) == word:
        return int(word)
    if re.fullmatch(r"-?[0-9]+\.[0-9]+", word):
        return float(word)
    return word


def _json_object(text: str, path: KeyPath) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Refused(path, f"is no JSON: {error}", "mend the JSON text") from error
    return dict(value)


def _leaves(
    flag: str, inner: Sequence[str], content: Mapping[str, Any], path: KeyPath
) -> Iterator[tuple[Landing, KnobValue]]:
    for key, value in content.items():
        if "." in key or not key:
            raise Refused((*path, key), f"a key such as {key!r} can't be told from a path", "leave it out")
        if isinstance(value, Mapping):
            yield from _leaves(flag, (*inner, key), value, (*path, key))
        else:
            yield JsonPath(flag=flag, path=".".join((*inner, key))), _held(value, (*path, key))


def _held(value: Any, path: KeyPath) -> KnobValue:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list) and all(isinstance(item, bool | int | float | str) for item in value):
        return tuple(value)
    raise Refused(path, "a knob can't hold lists of lists or of objects", "leave it out, or fix it in the template")


def _one_use_each(landings: Sequence[Landing]) -> None:
    uses: dict[str, str] = {}
    for lands in landings:
        if isinstance(lands, Flag | Switch | JsonPath):
            flag = lands.on if isinstance(lands, Switch) else lands.flag
            if uses.setdefault(flag, lands.place) != lands.place:
                words = {"flag": "takes a value", "switch": "is a switch", "json": "takes JSON"}
                message = f"{flag} {words[uses[flag]]} here and {words[lands.place]} there"
                raise Refused((flag,), message, "write it in one way")
