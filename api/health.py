"""Whether the process answers, and whether a study that is created now would be worked on."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from api.errors import declared
from api.parts import Given
from api.schemas import Health, Part, Readiness
from autotune.engine.dispatch import LEASE
from autotune.engine.ports import StudyStore
from autotune.errors import Unavailable

router = APIRouter(tags=["health"])


@router.get("/healthz", responses=declared())
def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", responses={**declared(), 503: {"model": Readiness, "description": "A part is missing."}})
def readyz(parts: Given, response: Response) -> Readiness:
    """Whether the database answers and a dispatcher is at work; 503 says which part is missing."""
    found = _parts(parts.store)
    ready = all(part.ok for part in found.values())
    if not ready:
        response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return Readiness(ready=ready, parts=found)


@router.get(
    "/metrics",
    response_class=Response,
    responses={**declared(text=True), 200: {"content": {"text/plain": {}}, "description": "Prometheus text format."}},
)
def metrics(parts: Given) -> Response:
    """Studies by state, trials by state and outcome, HTTP requests by route and status."""
    return Response(generate_latest(parts.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _parts(store: StudyStore) -> dict[str, Part]:
    try:
        owner = store.lease_owner(LEASE)
    except Unavailable as error:
        unknown = Part(ok=False, reason="unknown while the database does not answer")
        return {"database": Part(ok=False, reason=error.message), "dispatcher": unknown}
    reason = "no dispatcher holds the lease: studies wait until one is started" if owner is None else f"held by {owner}"
    return {
        "database": Part(ok=True, reason="answers"),
        "dispatcher": Part(ok=owner is not None, reason=reason),
    }
