"""From exceptions to answers: one table, one form of body.

`{"error": "InvalidStudy", "detail": "the study cannot be run", "problems": [{"key": "space", ...}]}`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from api.request_problems import problems_of_request
from api.security_headers import SECURITY_HEADERS
from autotune.domain.value import Value
from autotune.errors import AutotuneError, Conflict, InvalidRequest, NotFound, Problem, Unavailable

log = structlog.get_logger("api")

STATUS: Mapping[type[AutotuneError], HTTPStatus] = {
    InvalidRequest: HTTPStatus.UNPROCESSABLE_ENTITY,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""The status of an error is that of its nearest ancestor here."""

_MEANING: Mapping[int, str] = {
    400: "The request cannot be read, or its Host header does not name this machine.",
    403: "A page of another site asked for a change.",
    404: "There is no object of that name or number.",
    405: "This path has no such method; `Allow` lists those it has.",
    409: "The object is in a state that forbids this.",
    413: "The body is larger than 1 MB.",
    422: "What was asked cannot be done; `problems` lists every reason.",
    503: "A part of the service does not answer; try again later.",
}


class ProblemBody(Value):
    """One thing to mend: the dotted key, what is wrong, how to mend it, the values that would do."""

    key: str
    message: str
    mend: str = ""
    allowed: tuple[str, ...] = ()
    line: int | None = None
    file: str | None = None


_ERROR_SCHEMA = {"$ref": "#/components/schemas/ErrorBody"}


class ErrorBody(Value):
    """The body of every answer that is no success."""

    error: str
    detail: str
    problems: tuple[ProblemBody, ...] = ()


def declared(*statuses: int, text: bool = False) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: these errors on top of those that every route has.

    `text`: the route answers with text; its errors are JSON all the same.
    """
    everywhere = (400, 405, 413, 422, 503)
    form: dict[str, Any] = (
        {"content": {"application/json": {"schema": _ERROR_SCHEMA}}} if text else {"model": ErrorBody}
    )
    return {s: {**form, "description": _MEANING[s]} for s in sorted({*everywhere, *statuses})}


def answer(
    status: int, error: str, detail: str, problems: Sequence[Problem] = (), headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """An error in its one form."""
    body = ErrorBody(
        error=error,
        detail=detail,
        problems=tuple(
            ProblemBody(key=p.key, message=p.message, mend=p.mend, allowed=p.allowed, line=p.line, file=p.file)
            for p in problems
        ),
    )
    return JSONResponse(body.model_dump(mode="json"), status_code=status, headers=dict(headers or {}))


def status_of(error: AutotuneError) -> HTTPStatus:
    """By the table; an error that is not in it is our own fault."""
    for ancestor in type(error).__mro__:
        if ancestor in STATUS:
            return STATUS[ancestor]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def install(app: FastAPI, page: Callable[[Request, str], Response]) -> None:
    """Every exception of a route becomes an answer of the one form.

    `page` makes the answer for a person who followed a wrong address with a browser.
    """

    def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, AutotuneError)
        problems = error.problems if isinstance(error, InvalidRequest) else ()
        status = status_of(error)
        headers = {"Retry-After": "1"} if status is HTTPStatus.SERVICE_UNAVAILABLE else {}
        return answer(status, type(error).__name__, error.message, problems, headers)

    def unreadable(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = problems_of_request(error)
        return answer(422, "InvalidRequest", f"the request has {_count(len(problems))}", problems)

    def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = dict(error.headers or {})
        wants_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
        if error.status_code == HTTPStatus.NOT_FOUND and wants_page:
            return page(request, "There is no such page.")
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(_methods(app, request))
        phrase = HTTPStatus(error.status_code).phrase
        name = "".join(word.capitalize() for word in phrase.split())
        detail = error.detail if error.detail != phrase else f"{request.method} {request.url.path}: {phrase.lower()}"
        return answer(error.status_code, name, detail, headers=headers)

    def fault(request: Request, error: Exception) -> Response:
        log.error("request failed", method=request.method, path=request.url.path, exc_info=error)
        return answer(500, "InternalError", "the service failed; its log says why", headers=SECURITY_HEADERS)

    app.add_exception_handler(AutotuneError, refused)
    app.add_exception_handler(RequestValidationError, unreadable)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, fault)


def _count(problems: int) -> str:
    return "a problem" if problems == 1 else f"{problems} problems"


def _methods(app: FastAPI, request: Request) -> list[str]:
    """The methods of every route of this path; the framework itself lists only the first route's."""

    def answers(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(r.matches(scope)[0] is Match.FULL for r in app.routes if not isinstance(r, Mount))

    # What is mounted are files.
    return [m for m in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT") if answers(m)] or ["GET", "HEAD"]
