"""Trace files: JSON lines of when requests come, and how long they are."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

from pydantic import Field, StrictInt, ValidationError

from autotune.domain.value import Value
from autotune.domain.workload import MAX_REQUESTS
from workers.load.refusal import BadTrace


class TraceEntry(Value):
    """One line. `at_s` counts from the start of the level; lengths that are left out are the workload's."""

    at_s: float = Field(ge=0, le=86_400)
    prompt_tokens: StrictInt | None = Field(default=None, ge=1)
    output_tokens: StrictInt | None = Field(default=None, ge=2)


@functools.lru_cache(maxsize=4)
def read_trace(path: Path) -> tuple[TraceEntry, ...]:
    """The lines of a trace in their order, which is that of time. Raises BadTrace with the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"trace_file {path} can't be read: {error}") from error
    found: list[TraceEntry] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(TraceEntry.model_validate_json(line))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(map(str, problem["loc"]))
            raise BadTrace(
                f"trace_file {path}, line {number}: {where}: {problem['msg']}".replace(": :", ":")
            ) from error
    if not found:
        raise BadTrace(f"trace_file {path} has no lines")
    if len(found) > MAX_REQUESTS:
        raise BadTrace(f"trace_file {path} has more than {MAX_REQUESTS} lines; split it")
    for number, (one, other) in enumerate(itertools.pairwise(found), 2):
        if other.at_s < one.at_s:
            raise BadTrace(f"trace_file {path}: entry {number} comes before the one above it; sort it by at_s")
    return tuple(found)
