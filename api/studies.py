"""Studies: create, list, look at, cancel, resume, export."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from api.errors import declared
from api.parts import Given
from api.route_types import Limit, Offset, StudyId
from api.schemas import StudyList
from autotune.domain.export import to_env, to_json, to_sh
from autotune.domain.recipe import Recipe
from autotune.domain.study import StudySpec, StudyState
from autotune.engine.overview import StudyOverview

router = APIRouter(prefix="/api/v1/studies", tags=["studies"])


class ExportFormat(StrEnum):
    """A launch script, an env file, or the recipe with its evidence."""

    SH = "sh"
    ENV = "env"
    JSON = "json"


_WRITERS = {
    ExportFormat.SH: (to_sh, "text/x-shellscript"),
    ExportFormat.ENV: (to_env, "text/plain"),
    ExportFormat.JSON: (to_json, "application/json"),
}

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{1,200}$",
        description="The same key with the same body gives the study that was created first.",
    ),
]


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses={
        **declared(403, 409),
        201: {"headers": {"Location": {"description": "Where the study is.", "schema": {"type": "string"}}}},
    },
)
def create(spec: StudySpec, parts: Given, response: Response, idempotency_key: IdempotencyKey = None) -> StudyOverview:
    """Store a study; the dispatcher takes it up. Nothing is stored when anything is wrong with it."""
    study = parts.service.create(spec, idempotency_key)
    response.headers["Location"] = f"/api/v1/studies/{study.id}"
    return parts.service.overview(study.id)


@router.get("", responses=declared())
def listing(
    parts: Given,
    state: Annotated[StudyState | None, Query()] = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> StudyList:
    """Studies with their progress, newest first."""
    page = parts.service.overviews(state, offset, limit)
    return StudyList(items=page.items, total=page.total, offset=offset, limit=limit)


@router.get("/{study_id}", responses=declared(404))
def look(study_id: StudyId, parts: Given) -> StudyOverview:
    """One study with its progress."""
    return parts.service.overview(study_id)


@router.post("/{study_id}/cancel", responses=declared(403, 404, 409))
def cancel(study_id: StudyId, parts: Given) -> StudyOverview:
    """End the study; what it has running is ended soon after."""
    parts.service.cancel(study_id)
    return parts.service.overview(study_id)


@router.post("/{study_id}/resume", responses=declared(403, 404, 409))
def resume(study_id: StudyId, parts: Given) -> StudyOverview:
    """Go on with a cancelled or failed study."""
    parts.service.resume(study_id)
    return parts.service.overview(study_id)


@router.get("/{study_id}/recipe", responses=declared(404, 409))
def recipe(study_id: StudyId, parts: Given) -> Recipe:
    """What a finished study recommends, with its evidence."""
    return parts.service.recipe(study_id)


@router.get(
    "/{study_id}/export",
    response_class=Response,
    responses={
        **declared(404, 409, text=True),
        200: {
            "description": "The file, under the name in Content-Disposition.",
            "content": {media: {"schema": {"type": "string"}} for _, media in _WRITERS.values()},
        },
    },
)
def export(
    study_id: StudyId, parts: Given, form: Annotated[ExportFormat, Query(alias="format")] = ExportFormat.SH
) -> Response:
    """The recommended configuration as a file."""
    found = parts.service.recipe(study_id)
    write, media_type = _WRITERS[form]
    # A study's name holds letters, digits, dot, dash and underscore only: it is safe in a file name.
    name = f"study-{study_id}-{found.study_name}.{form}"
    return Response(
        write(found), media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{name}"'}
    )
