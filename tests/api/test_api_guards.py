"""Who may ask, how much, and what every answer carries."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from api.guards import MAX_BODY, is_own_host
from tests import builders
from tests.api.running_api import RunningApi

STUDIES = "/api/v1/studies"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "127.0.0.1:8765", "127.9.9.9", "[::1]", "[::1]:8765", "LOCALHOST"]
)
def test_own_names(host: str) -> None:
    assert is_own_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
        "[::2]",
        "[::1",
        "0.0.0.0",
        "@",
    ],
)
def test_foreign_names(api: RunningApi, host: str) -> None:
    assert not is_own_host(host)
    answer = api.client.get("/healthz", headers={"Host": host})
    assert answer.status_code == 400


def test_a_rebound_name_reaches_no_route(api: RunningApi) -> None:
    answer = api.client.get(STUDIES, headers={"Host": "evil.example:8765"})
    assert (answer.status_code, answer.json()["error"]) == (400, "BadHost")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_pages_of_other_sites_change_nothing(api: RunningApi, headers: dict[str, str]) -> None:
    body = builders.study_spec().model_dump(mode="json")
    answer = api.client.post(STUDIES, json=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (403, "ForeignOrigin")
    assert api.store.studies().total == 0


def test_our_own_pages_and_programs_may(api: RunningApi) -> None:
    body = builders.study_spec().model_dump(mode="json")
    own = {"Origin": api.url, "Sec-Fetch-Site": "same-origin"}
    assert api.client.post(STUDIES, json=body, headers=own).status_code == 201
    assert api.client.post(STUDIES, json=body).status_code == 201


def test_a_body_too_large_is_refused_by_its_length(api: RunningApi) -> None:
    answer = api.client.post(STUDIES, content=b" " * (MAX_BODY + 1))
    assert (answer.status_code, answer.json()["error"]) == (413, "BodyTooLarge")


def test_a_body_too_large_is_refused_without_a_length(api: RunningApi) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(11):
            yield b" " * 100_000

    assert api.client.post(STUDIES, content=pieces()).status_code == 413


def test_a_body_in_pieces_is_put_together(api: RunningApi) -> None:
    text = builders.study_spec().model_dump_json().encode()
    headers = {"Content-Type": "application/json"}
    answer = api.client.post(STUDIES, content=iter([text[:50], text[50:]]), headers=headers)
    assert answer.status_code == 201


def test_a_client_that_leaves_in_the_middle_harms_nobody(api: RunningApi) -> None:
    address = urlsplit(api.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(b"POST /api/v1/studies HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{")
    assert api.get("/healthz").json() == {"status": "ok"}
    assert api.store.studies().total == 0


@pytest.mark.parametrize(
    "path", ["/", STUDIES, "/studies/9", "/static/base.css", "/nowhere", "/healthz", "/openapi.json"]
)
def test_every_answer_carries_the_policy(api: RunningApi, path: str) -> None:
    headers = api.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == ("no-cache" if path.startswith("/static") else "no-store")


def test_refusals_carry_it_too(api: RunningApi) -> None:
    answer = api.client.get("/", headers={"Host": "evil.example"})
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
