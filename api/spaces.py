"""What a study may name: search spaces, launch templates and their models."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from api.errors import declared
from api.parts import Given
from api.schemas import SpaceLine, TemplateLine, space_line, template_line
from autotune.domain.space import SearchSpace

router = APIRouter(prefix="/api/v1", tags=["spaces"])


@router.get("/spaces", responses=declared())
def spaces(parts: Given) -> list[SpaceLine]:
    """The search spaces that are known here."""
    return [space_line(parts.spaces.space(name)) for name in parts.spaces.names()]


@router.get("/spaces/{name}", responses=declared(404))
def space(name: Annotated[str, Path(max_length=128)], parts: Given) -> SearchSpace:
    """One search space with its knobs, rules and recipes."""
    return parts.spaces.space(name)


@router.get("/templates", responses=declared())
def templates(parts: Given) -> list[TemplateLine]:
    """The launch templates of this host and the models they serve."""
    return [template_line(parts.templates.template(name)) for name in parts.templates.names()]
