"""Names what is wrong with a request: the same words as for a study file, without its lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails

from autotune.documents import Document, problems_of
from autotune.documents.problems import WHOLE
from autotune.domain.study import StudySpec
from autotune.errors import Problem


def problems_of_request(error: RequestValidationError) -> list[Problem]:
    """Each thing that is wrong with body, path, query or headers."""
    body: list[ErrorDetails] = []
    found: list[Problem] = []
    for entry in error.errors():
        place, *path = entry["loc"]
        details = cast(ErrorDetails, {**entry, "loc": tuple(path)})
        if entry["type"] == "json_invalid":
            found.append(Problem(key="body", message=f"is no JSON: {entry['ctx']['error']}", mend="send a JSON object"))
        elif entry["type"] == "missing" and not path:
            found.append(Problem(key=str(place), message="is missing", mend="send a JSON object"))
        elif place == "body":
            body.append(details)
        else:
            given: Any = {path[0]: entry["input"]} if path else None
            found += [replace(p, mend="") for p in problems_of([details], Document(given))]
    # Studies are the only bodies that are sent here.
    found += problems_of(body, Document(error.body), StudySpec)
    return [replace(p, key="body", mend=p.mend or "send a JSON object") if p.key == WHOLE else p for p in found]
