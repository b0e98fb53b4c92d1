"""Search spaces as files; `my_space.yaml` describes the space `my-space`."""

from __future__ import annotations

from pathlib import Path

from autotune.documents.space_coherence import incoherences
from autotune.documents.value_file import file_text, read_value
from autotune.documents.yaml_text import Document
from autotune.domain.space import SearchSpace
from autotune.errors import InvalidRequest, InvalidSpace, Problem


def read_space(path: Path) -> SearchSpace:
    """The space that a file describes. Raises InvalidSpace with every problem at once."""
    try:
        text = file_text(path)
    except InvalidRequest as error:
        raise InvalidSpace(error.message, error.problems) from error
    return space_of(text, path)


def space_of(text: str, path: Path | None = None) -> SearchSpace:
    """As `read_space`, of a text that was read already; `path`, where given, must go with its name."""

    def cross_check(document: Document) -> list[Problem]:
        strange = [] if path is None else _name_unlike_file(document, path)
        return [*strange, *incoherences(document)]

    return read_value(SearchSpace, text, None if path is None else str(path), InvalidSpace, cross_check)


def name_in_file(path: Path) -> str:
    """The name of the space that a file of this name describes."""
    return path.stem.replace("_", "-")


def _name_unlike_file(document: Document, path: Path) -> list[Problem]:
    name = document.data.get("name") if isinstance(document.data, dict) else None
    expected = name_in_file(path)
    if not isinstance(name, str) or name == expected:
        return []
    message = f"is {name}, but the file is named {path.name}"
    line = document.line_of(("name",))
    return [Problem("name", message, "name both alike", (expected,), line, document.file)]
