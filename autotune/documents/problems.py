"""What pydantic found wrong, in the words of the person who wrote the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from autotune.documents.expected import (
    Place,
    allowed_values,
    in_words,
    inside,
    is_union,
    keys_of,
    pattern_in_words,
    place_of,
)
from autotune.documents.yaml_text import Document, KeyPath, dotted, key_path
from autotune.errors import Problem

WHOLE = "file"  # the key of a problem with the document as a whole

_WANTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "mapping_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}
_BOUNDS = {
    "greater_than": ("gt", "must be above"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be below"),
    "less_than_equal": ("le", "must be at most"),
}


def problems_of(
    error: ValidationError | Sequence[ErrorDetails], document: Document, model: type[BaseModel] | None = None
) -> list[Problem]:
    """One problem for every place that is wrong, by dotted key and with its line in the document.

    `model` is what was validated; with it, unknown keys and ranges come with what is allowed.
    """
    details = error.errors(include_url=False) if isinstance(error, ValidationError) else list(error)
    by_path: dict[KeyPath, list[ErrorDetails]] = {}
    for detail in details:
        by_path.setdefault(_path_in(document.data, detail, model), []).append(detail)
    found: list[Problem] = []
    for path, group in by_path.items():
        branches = len(group) > 1 and all(d["type"] in _WANTED for d in group)
        if branches and any(len(other) > len(path) and other[: len(path)] == path for other in by_path):
            continue  # it took one branch of a union, and the fault lies deeper
        if branches:
            found.append(_no_branch_fits(path, group, document))
        else:
            found += [_problem(path, detail, document, model) for detail in group]
    return found


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that offers the known word most like this one; empty when none is alike."""
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def _path_in(data: Any, detail: ErrorDetails, model: type[BaseModel] | None) -> KeyPath:
    """Pydantic's location without the names of union branches, which are no keys of the file."""
    path: list[str | int] = []
    place = Place(model) if model else None
    for part in detail["loc"]:
        branch = is_union(place)
        place = inside(place, part) if place else None
        if branch:
            continue
        known = (isinstance(data, dict) and part in data) or (
            isinstance(data, list | tuple) and isinstance(part, int) and 0 <= part < len(data)
        )
        if known:
            data = data[part]
            path.append(part)
    if detail["type"] == "missing":
        path.append(detail["loc"][-1])
    elif detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path.append(detail.get("ctx", {})["discriminator"].strip("'"))
    return tuple(path)


def _no_branch_fits(path: KeyPath, group: Sequence[ErrorDetails], document: Document) -> Problem:
    wanted = tuple(dict.fromkeys(_WANTED[d["type"]] for d in group))
    got = in_words(group[0]["input"])
    return _at(path, f"{got} does not fit here", document, allowed=wanted)


def _problem(path: KeyPath, detail: ErrorDetails, document: Document, model: type[BaseModel] | None) -> Problem:
    kind = detail["type"]
    context = detail.get("ctx", {})
    place = place_of(model, detail["loc"]) if model else None
    got = in_words(detail["input"])
    if kind == "extra_forbidden":
        known = keys_of(place_of(model, detail["loc"][:-1])) if model else ()
        mend = nearest(str(path[-1]), known) or "remove it"
        return _at(path, "unknown key", document, mend, known)
    if kind == "missing":
        return _at(path, "is missing", document, "add it", allowed_values(place))
    if kind in _WANTED:
        if detail["input"] is None and not path:
            return _at(path, "is empty", document)
        return _at(path, f"must be {_WANTED[kind]}, not {got}", document, "", allowed_values(place))
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return _at(path, f"is {got} and {words} {context[name]:g}", document, "", allowed_values(place))
    if kind in ("enum", "literal_error", "union_tag_invalid"):
        listed = str(context.get("expected_tags") or context.get("expected", ""))
        allowed = allowed_values(place) or tuple(re.findall(r"'([^']*)'", listed))
        shown = context.get("tag", detail["input"])
        text = f"{in_words(shown)} is not known here"
        return _at(path, text, document, nearest(str(shown), allowed), allowed)
    if kind == "union_tag_not_found":
        return _at(path, "is missing", document, "add it")
    if kind == "string_pattern_mismatch":
        return _at(path, f"{got} is not of the right form", document, "", (pattern_in_words(context["pattern"]),))
    if kind in ("too_short", "too_long"):
        bound = f"at least {context['min_length']}" if kind == "too_short" else f"at most {context['max_length']}"
        return _at(path, f"has {context['actual_length'] or 'no'} items and needs {bound}", document)
    if kind == "value_error":
        return _from_sentence(path, str(context.get("error", detail["msg"])), document, place)
    return _at(path, detail["msg"], document, "", allowed_values(place))


def _from_sentence(path: KeyPath, sentence: str, document: Document, place: Place | None) -> Problem:
    """A validator's own sentence: `[key: ]message[; allowed: a, b][; how to mend it]`."""
    message, *rest = sentence.split("; ")
    known = keys_of(place)
    prefix, colon, remainder = message.partition(": ")
    inner = key_path(prefix) if colon and re.fullmatch(r"[\w.\[\]-]+", prefix) else ()
    if inner and inner[0] in known:
        path, message = (*path, *inner), remainder
    elif (first := message.split(" ", 1)[0]) in known:
        path, message = (*path, first), message.split(" ", 1)[1]
    allowed: tuple[str, ...] = ()
    if form := re.fullmatch(r"(.+ is not of the )form (.+)", message):
        message, allowed = f"{form[1]}right form", tuple(word.strip("'") for word in form[2].split(" or "))
    elif least := re.match(r"\d+ is less than the (\d+) ", message):
        allowed = (f"at least {least[1]}",)
    mends: list[str] = []
    for part in rest:
        if part.startswith("allowed: "):
            allowed = tuple(part.removeprefix("allowed: ").split(", "))
        else:
            mends.append(part)
    unknown = re.match(r"unknown [\w ]+? (\S+)$", message)
    if unknown and allowed and (hint := nearest(unknown[1], allowed)):
        mends.append(hint)
    return _at(path, message, document, "; ".join(mends), allowed)


def _at(path: KeyPath, message: str, document: Document, mend: str = "", allowed: tuple[str, ...] = ()) -> Problem:
    line = document.line_of(path)
    return Problem(dotted(path) or WHOLE, message, mend, allowed, line=line, file=document.file)
