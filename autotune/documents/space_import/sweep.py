"""Server parameters of `vllm bench sweep`: a JSON list of combinations, or an object of named ones.

A key is a long option with dashes or underscores, `config.inner` a key of a JSON option; true and false switch
`--key` and `--no-key`; an object is JSON. `_benchmark_name` names a combination.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from autotune.documents.space_import.draft import Draft
from autotune.documents.space_import.records import Record, Refused, add_knobs, is_owned, settings_of, slug
from autotune.domain.knobs import KnobValue
from autotune.errors import Problem

NAME = "_benchmark_name"


def read_sweep(text: str, draft: Draft) -> list[Problem]:
    """Fill the draft. The first combination is the baseline, those with a name become recipes."""
    try:
        data = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        return [Problem("json", f"is not JSON: {error.msg}", line=error.lineno)]
    except ValueError as error:
        return [Problem("json", str(error))]
    if isinstance(data, Mapping):
        data = [{NAME: name, **item} if isinstance(item, Mapping) else item for name, item in data.items()]
    if not isinstance(data, list) or not data or not all(isinstance(item, Mapping) for item in data):
        return [Problem("file", "must be a list of objects, one for each combination", "see `vllm bench sweep`")]
    problems: list[Problem] = []
    records: list[Record] = []
    left: dict[str, None] = {}
    for index, item in enumerate(data):
        record: Record = {}
        for key, value in item.items():
            if key == NAME:
                continue
            if is_owned(key):
                left[f"{key}, which the launch template of the host sets"] = None
                continue
            try:
                record.update((lands, v) for lands, v in settings_of(key, value, (index, key)) if v is not None)
            except Refused as refused:
                problems.append(refused.problem)
        records.append(record)
    if problems:
        return problems
    try:
        names = add_knobs(draft, records)
    except Refused as refused:
        return [refused.problem]
    draft.notes += left
    draft.recipes += _recipes(data, records, names)
    return []


def _recipes(data: list[Any], records: list[Record], names: list[tuple[Any, str]]) -> Iterator[tuple[str, Any]]:
    taken: set[str] = set()
    for item, record in zip(data[1:], records[1:], strict=True):
        if NAME in item:
            name = slug(str(item[NAME]))
            while name in taken:
                name = f"{name}-again"
            taken.add(name)
            values: dict[str, KnobValue] = {knob: record.get(lands) for lands, knob in names}
            yield name, values


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")
