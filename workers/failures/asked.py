"""The settings that a launch asked for, from its plan or its script, so that a failure can name them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FLAG = re.compile(r"--?[A-Za-z][\w-]*(=|$)")


def asked_settings(text: str) -> dict[str, str]:
    """Name to value of every flag, variable and key of a JSON value; of a name given twice the last.

    `text` is a launch plan as JSON, a JSON list of arguments, or a shell script. A script that cannot be read
    to its end gives what stands before.
    """
    try:
        document = json.loads(text)
    except ValueError:
        return dict(_of_words(_words(text)))
    return dict(_of_document(document))


def _of_document(document: Any) -> Iterator[tuple[str, str]]:
    match document:
        case list() if all(isinstance(item, str) for item in document):
            yield from _of_words(document)
        case list():
            for item in document:
                yield from _of_document(item)
        case dict():
            for name, value in document.items():
                if isinstance(value, dict | list):
                    yield from _of_document(value)
                elif value is not None:
                    yield str(name), _written(value)


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # a quotation without an end
        return words
    return words


def _of_words(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, word in enumerate(words):
        if _FLAG.match(word):
            name, given, value = word.partition("=")
            name = _dashed(name)
            if not given:
                following = words[index + 1] if index + 1 < len(words) else ""
                value = "" if _FLAG.match(following) else following
            yield name, value
            yield from _of_json(value)
        elif _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            yield name, value


def _of_json(value: str) -> Iterator[tuple[str, str]]:
    if not value.lstrip().startswith("{"):
        return
    try:
        found = json.loads(value)
    except ValueError:
        return
    yield from _leaves(found)


def _leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        else:
            yield name, _written(value)


def _dashed(name: str) -> str:
    dashes = len(name) - len(name.lstrip("-"))
    return name[:dashes] + name[dashes:].replace("_", "-")


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
