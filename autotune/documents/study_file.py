"""Study files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from autotune.documents.problems import problems_of
from autotune.documents.value_file import read_value
from autotune.documents.yaml_text import Document, KeyPath, dotted
from autotune.domain.knobs import KnobValue
from autotune.domain.presets import PRESETS
from autotune.domain.study import StudySpec
from autotune.domain.workload import LoadLevel
from autotune.errors import InvalidStudy, Problem

_NAMING = ("concurrency", "rate_per_s", "rate_to_per_s", "trace_file")  # what makes the name of a level

# A study that is right whatever stands in the parts under test.
_NEUTRAL: Mapping[str, Any] = {
    "name": "neutral",
    "space": "neutral",
    "deployment": {"template": "neutral", "model": "neutral"},
    "workload": {"prompt_tokens": 1, "output_tokens": 2, "levels": [{"concurrency": 1, "requests": 1}]},
    "budget": {"trials": 100_000, "wall_time_s": 1},
}


def read_study(text: str, file: str | None = None, baseline: Mapping[str, KnobValue] | None = None) -> StudySpec:
    """The study that a file asks for. Raises InvalidStudy with everything that is wrong, at once.

    Whether the space, template and model exist, only the server knows. `baseline` takes the place of the one
    in the file, which may name a launch script instead of knobs.
    """

    def edit(data: Any) -> Any:
        return data if baseline is None or not isinstance(data, dict) else {**data, "baseline": dict(baseline)}

    return read_value(StudySpec, text, file, InvalidStudy, cross_check=_parts_against_each_other, edit=edit)


def _parts_against_each_other(document: Document) -> list[Problem]:
    """StudySpec's own checks of parts against each other, asked for a few parts at a time.

    A StudySpec stops at the first such complaint, and says none while any other part is wrong.
    """
    if not isinstance(document.data, dict):
        return []
    found: list[Problem] = []
    for path, parts in _groups(document.data):
        try:
            StudySpec.model_validate({**_NEUTRAL, **parts})
        except ValidationError as error:
            details = [d for d in error.errors(include_url=False) if not d["loc"]]
            for problem in problems_of(details, document, StudySpec):
                found.append(replace(problem, key=dotted(path), line=document.line_of(path)))
    return found


def _groups(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    budget = data.get("budget")
    if isinstance(budget, dict) and "trials" in budget:
        spent = {key: data[key] for key in ("gate_launches", "confirmation") if key in data}
        yield ("budget", "trials"), {**spent, "budget": {**_NEUTRAL["budget"], "trials": budget["trials"]}}
    workload = _same_levels(data.get("workload"))
    if not workload:
        return
    objective = data.get("objective")
    weights = objective.get("weights") if isinstance(objective, dict) else None
    for level in weights if isinstance(weights, dict) else ():
        yield ("objective", "weights", level), {**workload, "objective": {"weights": {level: 1.0}}}
    limits = data.get("sla")
    for index, limit in enumerate(limits if isinstance(limits, list) else ()):
        yield ("sla", index), {**workload, "sla": [limit]}


def _same_levels(workload: Any) -> dict[str, Any]:
    """A workload without other faults that has the levels which can be read; empty when none can."""
    items = workload.get("levels") if isinstance(workload, dict) else None
    preset = workload.get("preset") if isinstance(workload, dict) else None
    if items is None and isinstance(preset, str):
        items = PRESETS.get(preset, {}).get("levels")
    levels: dict[str, dict[str, Any]] = {}
    for item in items if isinstance(items, list) else ():
        named = {key: item[key] for key in _NAMING if key in item} if isinstance(item, dict) else {}
        try:
            level = LoadLevel.model_validate({**named, "requests": 1})
        except ValidationError:
            if len(named) > 1:
                return {}  # its name can't be told, so neither can what is no name
            continue
        levels.setdefault(level.name, level.model_dump(mode="json"))
    return {"workload": {**_NEUTRAL["workload"], "levels": list(levels.values())}} if levels else {}
