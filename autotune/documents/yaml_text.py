"""YAML text as plain data, with the line of every key.

Only what JSON can hold comes out: mappings with text keys, lists, text, numbers, true, false, null. Plain
scalars are read by the YAML 1.2 core schema, so that `no`, `on` and `12:30` stay text and `1e3` is a number.
Tags, anchors and aliases are refused, as is a second document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from autotune.errors import InvalidRequest, Problem

MAX_BYTES = 1_000_000
MAX_DEPTH = 32

KeyPath = tuple[str | int, ...]
"""Where a value stands: mapping keys and list indexes, outermost first."""

# libyaml is some ten times as fast; the wheels carry it, a build from source may not.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Document:
    """Plain data and where it was written. `lines` are 1-based; of a mapping's entry, the line of its key."""

    data: Any
    file: str | None = None
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def line_of(self, path: Sequence[str | int]) -> int | None:
        """The line of the value at `path`, or of the nearest enclosing one that has a line."""
        rest = tuple(path)
        while rest not in self.lines and rest:
            rest = rest[:-1]
        return self.lines.get(rest)


def dotted(path: Sequence[str | int]) -> str:
    """`workload.levels[1].requests` for ("workload", "levels", 1, "requests")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def key_path(key: str) -> KeyPath:
    """The inverse of `dotted`, for keys without dots or brackets of their own."""
    return tuple(int(index) if index else word for index, word in re.findall(r"\[(\d+)\]|([^.\[\]]+)", key))


def read_document(text: str, file: str | None = None) -> Document:
    """Raises InvalidRequest with the line of whatever can't be read; `file` is only named in messages."""
    document, problems = scan(text, file)
    if problems:
        raise InvalidRequest(f"{file or 'the text'} can't be read", problems)
    return document


def scan(text: str, file: str | None) -> tuple[Document, list[Problem]]:
    """As `read_document`, but hands back keys that occur twice beside the data (their first value)."""
    text = text.removeprefix("\ufeff")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        _refuse(file, None, f"{size} bytes are more than the {MAX_BYTES} that are read")
    strange = _UNPRINTABLE.search(text)
    if strange:
        line = text.count("\n", 0, strange.start()) + 1
        _refuse(file, line, f"the character U+{ord(strange[0]):04X} can't be in a text file", "remove it")
    builder = _Builder(file)
    try:
        data = builder.document(iter(yaml.parse(text, Loader=_LOADER)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _refuse(file, None if mark is None else mark.line + 1, *_in_plain_words(error, text))
    except yaml.YAMLError as error:
        _refuse(file, None, f"is not YAML: {error}")
    return Document(data=data, file=file, lines=builder.lines), builder.problems


def _refuse(file: str | None, line: int | None, message: str, mend: str = "") -> NoReturn:
    problem = Problem(key="yaml", message=message, mend=mend, line=line, file=file)
    raise InvalidRequest(f"{file or 'the text'} can't be read", [problem])


def _in_plain_words(error: yaml.MarkedYAMLError, text: str) -> tuple[str, str]:
    mark = error.problem_mark
    lines = text.splitlines()
    if mark is not None and mark.line < len(lines) and "\t" in lines[mark.line][: mark.column + 1]:
        return "a tab stands where YAML wants spaces", "indent with spaces"
    parts = [part for part in (error.context, error.problem) if part]
    return f"is not YAML: {', '.join(parts)}", "look at quotes, colons and indentation here and one line above"


class _Builder:
    """Data from parser events: the depth is known before it is entered, and nothing is ever constructed."""

    def __init__(self, file: str | None) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[Problem] = []
        self._file = file
        self._events: Iterator[Any] = iter(())

    def document(self, events: Iterator[Any]) -> Any:
        self._events = events
        next(events)  # stream start
        event = next(events)
        if isinstance(event, yaml.StreamEndEvent):
            return None
        data = self._value(next(events), (), 1)
        next(events)  # document end
        event = next(events)
        if not isinstance(event, yaml.StreamEndEvent):
            _refuse(self._file, _line(event), "a second document begins here", "keep one document in a file")
        return data

    def _value(self, event: Any, path: KeyPath, depth: int) -> Any:
        self.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            _refuse(self._file, _line(event), "anchors and aliases (& and *) are not read", "write the value out")
        if event.tag is not None:
            _refuse(self._file, _line(event), f"the tag {event.tag} is not read", "remove it; put text in quotes")
        if isinstance(event, yaml.ScalarEvent):
            return self._plain(event) if event.implicit[0] else event.value
        if depth > MAX_DEPTH:
            _refuse(self._file, _line(event), f"is nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(path, depth)
        return self._mapping(path, depth)

    def _list(self, path: KeyPath, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items)), depth + 1))
        return items

    def _mapping(self, path: KeyPath, depth: int) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = _line(event)
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None or event.anchor is not None:
                _refuse(self._file, line, "a key must be plain text")
            here = (*path, event.value)
            first = self.lines.get(here) if event.value in entries else None
            self.lines.setdefault(here, line)
            value = self._value(next(self._events), here, depth + 1)
            if first is None:
                entries[event.value] = value
            else:
                text = f"is given twice, on lines {first} and {line}"
                mend = "keep one of the two"
                self.problems.append(Problem(key=dotted(here), message=text, mend=mend, line=line, file=self._file))
        return entries

    def _plain(self, event: Any) -> Any:
        text: str = event.value
        if _NULL.fullmatch(text):
            return None
        if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
            return text[0] in "tT"
        try:
            if _INTEGER.fullmatch(text):
                return int(text)
            if _OTHER_BASE.fullmatch(text):
                return int(text, 0)
        except ValueError:  # Python reads at most some thousand digits
            _refuse(self._file, _line(event), f"a number of {len(text)} digits is too long")
        if _FLOAT.fullmatch(text):
            number = float(text)
            if math.isinf(number):
                _refuse(self._file, _line(event), f"the number {text} is too large")
            return number
        return text


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
