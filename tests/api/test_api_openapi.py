"""The description of the API is valid, whole, and true of every answer that can be provoked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate

from autotune.domain.study import Study
from tests import builders
from tests.api.running_api import RunningApi, measured, started

ROUTES = {
    "POST /api/v1/studies",
    "GET /api/v1/studies",
    "GET /api/v1/studies/{study_id}",
    "POST /api/v1/studies/{study_id}/cancel",
    "POST /api/v1/studies/{study_id}/resume",
    "GET /api/v1/studies/{study_id}/recipe",
    "GET /api/v1/studies/{study_id}/export",
    "GET /api/v1/studies/{study_id}/trials",
    "GET /api/v1/studies/{study_id}/trials/{number}",
    "GET /api/v1/studies/{study_id}/trials/{number}/log",
    "GET /api/v1/spaces",
    "GET /api/v1/spaces/{name}",
    "GET /api/v1/templates",
    "GET /api/v1/hosts",
    "POST /api/v1/hosts/{host}/devices/{device}/release",
    "GET /api/v1/events",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
}
NONSENSE = ["0", "1", "-1", "1.5", "abc", "2147483648", "9" * 40, "%00", "%F0%9F%92%A5", "..%2F..", "a%20b", "tiny"]
QUERIES = [
    "",
    "limit=0",
    "offset=-1",
    "state=x",
    "phase=%00",
    "feasible=7",
    "format=",
    "after=-1",
    "study_id=x",
    "zzz=1",
]
BODIES = [None, b"", b"{", b"[]", b"\xff", b'{"name": 3}', b"null", b'{"sla": [[]]}', b'{"baseline": {"a": [[1]]}}']


@pytest.fixture
def schema(api: RunningApi) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/openapi.json").json()
    return found


@pytest.fixture
def study(api: RunningApi) -> Study:
    found = api.create()
    measured(api.store, found, started(api.store, found, label="baseline"))
    return found


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def test_the_description_is_valid_and_lists_these_routes(schema: dict[str, Any]) -> None:
    validate(schema)
    assert {f"{method} {path}" for method, path, _ in operations(schema)} == ROUTES


def test_every_error_has_the_one_form(schema: dict[str, Any]) -> None:
    for _, path, operation in operations(schema):
        for status, response in operation["responses"].items():
            if int(status) >= 400 and (path, status) != ("/readyz", "503"):
                content = response["content"]["application/json"]["schema"]
                assert content == {"$ref": "#/components/schemas/ErrorBody"}, (path, status)


def test_a_limit_may_be_sent_as_text(schema: dict[str, Any]) -> None:
    assert schema["components"]["schemas"]["Limit-Input"]["anyOf"][0]["type"] == "string"


def test_nonsense_is_answered_as_described(api: RunningApi, schema: dict[str, Any], study: Study) -> None:
    assert study.id == 1
    for method, path, operation in operations(schema):
        places = len(re.findall(r"{\w+}", path))
        for values in itertools.product(NONSENSE, repeat=places):
            if places == 2 and values[0] not in ("1", "abc") and values[1] not in ("0", "abc"):
                continue  # one wrong part at a time, and both
            made = iter(values)
            address = re.sub(r"{\w+}", lambda _, made=made: next(made), path)  # type: ignore[misc]
            for content in BODIES if method == "POST" else [None]:
                check(api, method, address, content, operation)
        for query in QUERIES:
            address = re.sub(r"{\w+}", "1", path)
            check(api, method, f"{address}?{query}", None, operation)


def check(api: RunningApi, method: str, address: str, content: bytes | None, operation: dict[str, Any]) -> None:
    with api.client.stream(method, address, content=content) as answer:
        assert answer.status_code < 500 or "/readyz" in address, (method, address, content)
        # An encoded slash makes another path, which may be none of ours.
        if "%2F" not in address:
            assert str(answer.status_code) in operation["responses"], (method, address, content, answer.status_code)
        if answer.status_code >= 400 and "/readyz" not in address:
            answer.read()
            assert set(answer.json()) == {"error", "detail", "problems"}


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/api/v1/studies", "GET, POST"),
        ("/api/v1/studies/1", "GET"),
        ("/api/v1/studies/1/cancel", "POST"),
        ("/api/v1/studies/1/trials/0/log", "GET"),
        ("/healthz", "GET"),
        ("/", "GET"),
        ("/openapi.json", "GET, HEAD"),
        ("/static/base.css", "GET, HEAD"),
    ],
)
@pytest.mark.parametrize("method", ["DELETE", "PUT", "OPTIONS", "MKCOL"])
def test_a_wrong_method_is_told_the_right_ones(api: RunningApi, method: str, path: str, allowed: str) -> None:
    answer = api.client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == allowed
    assert answer.json()["error"] == "MethodNotAllowed"


def test_no_page_that_loads_foreign_scripts_is_offered(api: RunningApi) -> None:
    for path in ("/docs", "/redoc"):
        assert api.get(path).status_code == 404


def test_what_the_description_calls_a_study_is_accepted(api: RunningApi) -> None:
    spec = builders.study_spec().model_dump(mode="json")
    spec["sla"] = [{"metric": "tpot_ms", "op": "<=", "bound": 12, "level": "c8"}]
    answer = api.client.post("/api/v1/studies", json=spec)
    assert answer.status_code == 201
    assert answer.json()["study"]["spec"]["sla"] == ["tpot_ms <= 12 at c8"]
