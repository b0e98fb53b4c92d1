"""From another tool's file to the text of a space, checked as every space is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from autotune.documents.space_file import space_of
from autotune.documents.space_import.draft import Draft
from autotune.documents.space_import.grid import read_grid
from autotune.documents.space_import.optix import read_optix
from autotune.documents.space_import.records import slug
from autotune.documents.space_import.sweep import read_sweep
from autotune.domain.space import SearchSpace
from autotune.errors import InvalidRequest, Problem


class Form(StrEnum):
    """Whose file it is."""

    VLLM_BENCH_SWEEP = "vllm-bench-sweep"
    OPTIX = "optix"
    EVALSCOPE_GRID = "evalscope-grid"


_ABOUT = {
    Form.VLLM_BENCH_SWEEP: "What a parameter file of vllm bench sweep varies.",
    Form.OPTIX: "What a configuration of OptiX varies.",
    Form.EVALSCOPE_GRID: "What a grid of values varies.",
}


@dataclass(frozen=True)
class Imported:
    """A space, its text, and what was left out, each with its reason."""

    space: SearchSpace
    text: str
    left_out: tuple[str, ...]


def import_space(text: str, form: Form, file: Path, name: str | None = None, engine: str = "vllm") -> Imported:
    """The space of a file. The name is that of the file where none is given.

    Raises InvalidRequest with everything in the file that a space can't hold, at once.
    """
    draft = Draft(slug(file.stem) if name is None else name, engine, _ABOUT[form], file.name)
    match form:
        case Form.VLLM_BENCH_SWEEP:
            problems = read_sweep(text, draft)
        case Form.OPTIX:
            problems = read_optix(text, draft)
        case Form.EVALSCOPE_GRID:
            problems = read_grid(text, str(file), draft)
    if not problems and not draft.knobs:
        problems = [Problem("file", "varies nothing", "give a parameter more than one value")]
    if problems:
        plural = "s" if len(problems) != 1 else ""
        named = [replace(problem, file=str(file)) for problem in problems]
        raise InvalidRequest(f"{file} can't become a space: {len(problems)} problem{plural}", named)
    yaml = draft.text()
    return Imported(space_of(yaml), yaml, tuple(draft.notes))
