"""The event stream: in order, once, taken up where it was lost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.running_api import RunningApi, measured, running, started

EVENTS = "/api/v1/events"


def frames(answer: httpx.Response) -> Iterator[tuple[int, dict[str, Any]]]:
    """Pairs of id and data."""
    seq = 0
    for line in answer.iter_lines():
        if line.startswith("id: "):
            seq = int(line.removeprefix("id: "))
        elif line.startswith("data: "):
            yield seq, json.loads(line.removeprefix("data: "))


def take(api: RunningApi, n: int, headers: dict[str, str] | None = None, **params: Any) -> list[tuple[int, Any]]:
    with api.client.stream("GET", EVENTS, params=params, headers=headers or {}) as answer:
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        return list(itertools.islice(frames(answer), n))


def test_everything_after_a_number_comes_in_order(api: RunningApi) -> None:
    study = api.create()
    measured(api.store, study, started(api.store, study))
    found = take(api, 3, after=0)
    assert [seq for seq, _ in found] == [1, 2, 3]
    assert [data["kind"] for _, data in found] == ["study_created", "study_phase", "trial_added"]
    assert found[2][1]["trial_number"] == 0
    assert [seq for seq, _ in take(api, 2, after=2)] == [3, 4]


def test_a_reconnecting_browser_loses_nothing_and_sees_nothing_twice(api: RunningApi) -> None:
    study = api.create()
    first = take(api, 1, after=0)
    started(api.store, study)  # happens while nobody listens
    again = take(api, 3, {"Last-Event-ID": str(first[-1][0])}, after=0)
    assert [seq for seq, _ in first + again] == [1, 2, 3, 4]


def test_new_events_arrive_while_the_stream_is_open(api: RunningApi) -> None:
    api.create(name="before")
    with api.client.stream("GET", EVENTS) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("retry: ")
        api.create(name="after")
        data = next(line for line in lines if line.startswith("data: "))
    assert json.loads(data.removeprefix("data: "))["data"]["name"] == "after"


def test_one_study_only(api: RunningApi) -> None:
    one, two = api.create(name="one"), api.create(name="two")
    started(api.store, one)
    started(api.store, two)
    found = take(api, 3, after=0, study_id=two.id)
    assert {data["study_id"] for _, data in found} == {two.id}


def test_more_events_than_one_batch(api: RunningApi) -> None:
    for n in range(510):
        api.create(name=f"s{n}")
    assert [seq for seq, _ in take(api, 510, after=0)] == list(range(1, 511))


@pytest.mark.parametrize("known", ["99999", "9223372036854775807"])
def test_a_client_of_another_database_starts_at_the_end(api: RunningApi, known: str) -> None:
    study = api.create()
    with api.client.stream("GET", EVENTS, headers={"Last-Event-ID": known}) as answer:
        lines = answer.iter_lines()
        next(lines)
        started(api.store, study)
        assert next(line for line in lines if line.startswith("id: ")) == "id: 2"


@pytest.mark.parametrize("odd", ["", "abc", "-1", "1e3", "9" * 30])
def test_an_odd_last_event_id_is_passed_over(api: RunningApi, odd: str) -> None:
    api.create()
    assert [seq for seq, _ in take(api, 1, {"Last-Event-ID": odd}, after=0)] == [1]


def test_a_quiet_stream_shows_that_it_lives(tmp_path: Path) -> None:
    with running(tmp_path, heartbeat_s=0.05) as api, api.client.stream("GET", EVENTS) as answer:
        assert next(line for line in answer.iter_lines() if line.startswith(": still")) == ": still here"


def test_many_streams_do_not_block_other_requests(api: RunningApi) -> None:
    with httpx.Client(base_url=api.url, timeout=20, trust_env=False) as client:
        streams = [client.stream("GET", EVENTS) for _ in range(50)]
        answers = [stream.__enter__() for stream in streams]
        assert all(answer.status_code == 200 for answer in answers)
        assert api.get("/healthz").status_code == 200
        for stream in streams:
            stream.__exit__(None, None, None)


def test_streams_end_when_the_server_stops(tmp_path: Path) -> None:
    with httpx.Client(timeout=20, trust_env=False) as client:
        with running(tmp_path) as api:
            stream = client.stream("GET", f"{api.url}{EVENTS}")
            answer = stream.__enter__()
            lines = answer.iter_lines()
            assert next(lines).startswith("retry:")
        # `running` returns when the server has ended; the stream was closed in an orderly way, not cut.
        assert not [line for line in lines if line.startswith("data: ")]
        stream.__exit__(None, None, None)
