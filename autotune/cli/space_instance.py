"""Body of `autotune space show --stack`: a space on one stack, what it left out, and its size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from autotune.cli.space_table import in_words
from autotune.cli.space_words import stack_in_words
from autotune.cli.tables import figure, print_json, table
from autotune.documents import file_text, read_study
from autotune.documents.stack_text import check_included, read_stack
from autotune.domain.deployment import Deployment, facts
from autotune.domain.instance import Instance, instantiate
from autotune.domain.space import SearchSpace
from autotune.domain.space_size import SpaceSize, estimate
from autotune.domain.workload import LoadLevel, Workload

# Rules ask for facts of a study: without one, a small deployment under three light loads.
ANY_DEPLOYMENT = Deployment(template="any", model="any", devices=2, tensor_parallel=2)
ANY_WORKLOAD = Workload(
    prompt_tokens=1024,
    output_tokens=512,
    levels=tuple(LoadLevel(concurrency=c, requests=4 * c) for c in (1, 4, 8)),
)


def show_instance(
    space: SearchSpace, stack: str | None, include: Sequence[str], study: Path | None, *, as_json: bool
) -> None:
    """`stack` of None stands for the one that the space is pinned to. Raises InvalidRequest for a strange name."""
    versions = space.stack if stack is None else read_stack(stack, "--stack")
    check_included(space, include)
    instance = instantiate(space, versions, include)
    study_facts = facts(ANY_DEPLOYMENT, ANY_WORKLOAD)
    if study is not None:
        spec = read_study(file_text(study), str(study))
        study_facts = facts(spec.deployment, spec.workload)
    size = estimate(instance.space, study_facts)
    if as_json:
        print_json({**instance.model_dump(mode="json"), "facts": study_facts, "size": size.model_dump(mode="json")})
        return
    lines = [*in_words(instance.space), "", f"on {stack_in_words(versions)}", *_left_out(instance), ""]
    typer.echo("\n".join([*lines, *_size(size, study_facts)]))


def _left_out(instance: Instance) -> list[str]:
    if not instance.left_out:
        return ["nothing is left out"]
    rows = [[f"  {left.what}", left.name, left.why] for left in instance.left_out]
    return ["", f"left out ({len(rows)}):", *table(["", "", ""], rows).splitlines()[1:]]


def _size(size: SpaceSize, study_facts: Mapping[str, Any]) -> list[str]:
    assumed = ", ".join(f"{name}={study_facts[name]}" for name in ("devices", "tensor_parallel", "concurrency"))
    launchable = "none was found" if size.launchable is None else f"about {size.launchable:.1e}"
    lines = [
        f"size, for {assumed}:",
        f"  {scientific(size.combinations)} combinations of values, {launchable} different launches",
        f"  {size.draws} random draws: {_percent(size.refused)} refused by rules, "
        f"{_percent(size.repaired)} repaired, {_percent(size.warned)} with a warning",
    ]
    for title, counts in (("refused", size.refused_by), ("repaired", size.repaired_by), ("warned", size.warned_by)):
        lines += [f"    {title} by {name}: {_percent(count / size.draws)}" for name, count in counts.items()]
    if size.unjudged:
        lines.append(f"  {_percent(size.unjudged / size.draws)} could not be judged: {size.unjudged_why}")
        lines.append("  give the study's facts with --study FILE")
    return lines


def scientific(number: int) -> str:
    """`1.84e17`, also of a number that no float holds."""
    digits = str(number)
    return digits if len(digits) < 7 else f"{digits[0]}.{digits[1:3]}e{len(digits) - 1}"


def _percent(share: float) -> str:
    return f"{figure(100 * share)} %"
