"""A grid: each parameter with the list of values that it takes, as load testers and simple tuners are given.

Parameters in capitals, and all below `env`, are environment variables; the others are long options of the server,
`config.inner` (or nested) a key of a JSON option. A lone value is fixed. Parameters of the load are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.documents.space_import.draft import Draft
from autotune.documents.space_import.records import Record, Refused, add_knobs, is_owned, settings_of
from autotune.documents.yaml_text import KeyPath, read_document
from autotune.domain.knobs import EnvVar, KnobValue
from autotune.errors import InvalidRequest, Problem

# What `evalscope perf` calls the load: a study's workload says it.
LOAD = frozenset(
    {
        *("parallel", "number", "rate", "concurrency", "warmup_num", "open_loop", "stream", "url", "api"),
        *("max_tokens", "min_tokens", "max_prompt_length", "min_prompt_length", "prefix_length"),
        *("dataset", "dataset_path", "tokenizer_path"),
    }
)


def read_grid(text: str, file: str | None, draft: Draft) -> list[Problem]:
    """Fill the draft. The first value of each parameter is the baseline."""
    try:
        document = read_document(text, file)
    except InvalidRequest as error:
        return list(error.problems)
    if not isinstance(document.data, Mapping) or not document.data:
        return [Problem("file", "must be a mapping of parameters to lists of values", line=1, file=file)]
    problems: list[Problem] = []
    for path, values in _parameters(document.data):
        key = ".".join(map(str, path))
        if len(path) == 1 and (key.replace("-", "_") in LOAD or is_owned(key)):
            owner = "the study's workload" if key.replace("-", "_") in LOAD else "the launch template of the host"
            draft.notes.append(f"{key}, which {owner} sets")
            continue
        try:
            add_knobs(draft, [_record(path, value) for value in values])
        except Refused as refused:
            found = refused.problem
            problems.append(Problem(found.key, found.message, found.mend, line=document.line_of(path), file=file))
    return problems


def _parameters(data: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, list[Any]]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _parameters(value, (*path, key))
        else:
            yield (*path, key), value if isinstance(value, list) else [value]


def _record(path: KeyPath, value: Any) -> Record:
    """An empty value leaves the parameter unset."""
    if value is None or value == "":
        return {}
    name = str(path[-1])
    if path[0] == "env" and len(path) == 2:
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise Refused(path, f"{name!r} is no name of a variable")
        return {EnvVar(name=name): _scalar(path, value)}
    if len(path) == 1 and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        return {EnvVar(name=name): _scalar(path, value)}
    return {lands: v for lands, v in settings_of(".".join(map(str, path)), value, path) if v is not None}


def _scalar(path: KeyPath, value: Any) -> KnobValue:
    if not isinstance(value, bool | int | float | str):
        raise Refused(path, "a variable takes no lists")
    return value
