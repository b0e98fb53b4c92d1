"""A file that describes one value of the domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from autotune.documents.problems import problems_of
from autotune.documents.yaml_text import MAX_BYTES, Document, scan
from autotune.errors import InvalidRequest, Problem

T = TypeVar("T", bound=BaseModel)
CrossCheck = Callable[[Document], Sequence[Problem]]
"""Finds what a value's own validators would say only one at a time, or not while another part is wrong."""


def file_text(path: Path) -> str:
    """The file's text. Raises InvalidRequest when it is no readable UTF-8 file of at most MAX_BYTES."""
    name = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidRequest(f"{name} can't be read: {reason}", [Problem("file", reason, file=name)]) from error
    if len(content) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES} bytes"
        raise InvalidRequest(f"{name} {message}", [Problem("file", message, file=name)])
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = Problem("file", "is not UTF-8 text", mend="save it as UTF-8", line=line, file=name)
        raise InvalidRequest(f"{name} is not UTF-8 text", [problem]) from error


def read_value(
    model: type[T],
    text: str,
    file: str | None,
    error: type[InvalidRequest] = InvalidRequest,
    cross_check: CrossCheck | None = None,
    edit: Callable[[Any], Any] | None = None,
) -> T:
    """The value that the text describes. Raises `error` with all its problems, sorted by line.

    What `cross_check` finds replaces the complaints of the model as a whole, which know no line.
    `edit` replaces what stands in the file for something else, such as a reference for what it names.
    """
    try:
        document, problems = scan(text, file)
        document = document if edit is None else replace(document, data=edit(document.data))
    except InvalidRequest as unreadable:
        raise error(unreadable.message, unreadable.problems) from unreadable
    value: T | None = None
    try:
        value = model.model_validate(document.data)
    except ValidationError as invalid:
        details = invalid.errors(include_url=False)
        problems += problems_of([d for d in details if d["loc"]], document, model)
        crossed = list(cross_check(document)) if cross_check else []
        problems += crossed or problems_of([d for d in details if not d["loc"]], document, model)
    else:
        problems += cross_check(document) if cross_check else ()
    if value is None or problems:
        distinct = dict.fromkeys(problems)
        ordered = sorted(distinct, key=lambda p: (p.line is None, p.line or 0, p.key))
        plural = "s" if len(ordered) != 1 else ""
        raise error(f"{file or 'the text'} has {len(ordered)} problem{plural}", ordered)
    return value
