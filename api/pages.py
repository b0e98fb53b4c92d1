"""The dashboard: two pages and what they load. Read-only; everything live comes over the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.templating import Jinja2Templates

from api.parts import Given
from api.version import VERSION
from autotune.errors import NotFound

HERE = Path(__file__).parent
STATIC = HERE / "static"

router = APIRouter(include_in_schema=False)
_templates = Jinja2Templates(HERE / "templates")
_FOREVER = "public, max-age=31536000, immutable"


@router.get("/")
def home(request: Request, parts: Given) -> Response:
    """The list of studies."""
    return _page(request, "home.html", last_event=parts.store.last_event())


@router.get("/studies/{study_id}")
def study(request: Request, study_id: str, parts: Given) -> Response:
    """One study."""
    # Taken before the study: an event in between is then shown twice rather than never.
    last_event = parts.store.last_event()
    try:
        found = parts.store.study(int(study_id) if study_id.isascii() and study_id.isdecimal() else 0)
    except NotFound:
        return not_found(request, f"There is no study {study_id[:40]}.")
    return _page(
        request,
        "study.html",
        last_event=last_event,
        study=found,
        space=parts.store.space_of(found.id),
        plotly=parts.plotly,
    )


@router.get("/plotly/{version}/plotly.min.js")
def plotly(request: Request, version: str, parts: Given) -> Response:
    """plotly.js of the installed version; another version's address is not found."""
    if version != parts.plotly.version:
        raise NotFound(f"this service has plotly {parts.plotly.version}")
    headers = {"Cache-Control": _FOREVER, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = parts.plotly.gzipped, "gzip"
    else:
        body = parts.plotly.script
    return Response(body, media_type="text/javascript", headers=headers)


def not_found(request: Request, sentence: str) -> Response:
    """A page that says so, for a person at a browser."""
    return _page(request, "not_found.html", status=404, sentence=sentence)


def _page(request: Request, template: str, status: int = 200, **content: Any) -> Response:
    return _templates.TemplateResponse(request, template, {"version": VERSION, **content}, status_code=status)
