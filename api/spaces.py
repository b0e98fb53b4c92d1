"""What a study may name: search spaces, launch templates and their models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.errors import declared
from api.parts import Given
from api.schemas import SpaceLine, TemplateLine, space_line, template_line
from autotune.documents.stack_text import check_included, read_stack
from autotune.domain.instance import Instance, instantiate
from autotune.domain.space import SearchSpace

router = APIRouter(prefix="/api/v1", tags=["spaces"])

Stack = Annotated[
    str | None,
    Query(max_length=200, description="Give what exists there alone: `engine=0.23,cann=9.1,chip=910C`."),
]
Include = Annotated[
    list[str] | None,
    Query(
        max_length=200, description="Knobs of tier 3 by name, or `tier3` for all; on the space's own stack if alone."
    ),
]


@router.get("/spaces", responses=declared())
def spaces(parts: Given) -> list[SpaceLine]:
    """The search spaces that are known here."""
    return [space_line(parts.spaces.space(name)) for name in parts.spaces.names()]


@router.get("/spaces/{name}", responses=declared(404))
def space(
    name: Annotated[str, Path(max_length=128)], parts: Given, stack: Stack = None, include: Include = None
) -> SearchSpace | Instance:
    """One search space with its knobs, rules and recipes.

    With `stack` or `include`, its instance: `{"space", "left_out": [{"what", "name", "why"}]}`.
    """
    found = parts.spaces.space(name)
    if stack is None and not include:
        return found
    check_included(found, include or ())
    return instantiate(found, found.stack if stack is None else read_stack(stack), include or ())


@router.get("/templates", responses=declared())
def templates(parts: Given) -> list[TemplateLine]:
    """The launch templates of this host and the models they serve."""
    return [template_line(parts.templates.template(name)) for name in parts.templates.names()]
