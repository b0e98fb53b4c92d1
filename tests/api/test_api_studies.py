"""Studies over REST: what comes back, and what is refused without anything being stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.domain.recipe import Recipe
from autotune.domain.study import StudySpec, StudyState
from tests import builders
from tests.api.running_api import RunningApi, done, failed, measured, started

STUDIES = "/api/v1/studies"


def body(**changes: Any) -> dict[str, Any]:
    """A good study with the values at dotted paths replaced; `...` removes one."""
    found: dict[str, Any] = builders.study_spec().model_dump(mode="json")
    for path, value in changes.items():
        *way, last = path.split("__")
        place: Any = found
        for part in way:
            place = place[part]
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return found


def test_a_study_is_created_and_found_where_it_says(api: RunningApi) -> None:
    answer = api.client.post(STUDIES, json=body())
    assert answer.status_code == 201
    study_id = answer.json()["study"]["id"]
    assert answer.headers["Location"] == f"{STUDIES}/{study_id}"
    found = api.get(answer.headers["Location"])
    assert found.json() == answer.json()
    assert found.json()["study"]["spec"]["sla"] == ["ttft_p99_ms <= 400"]


def test_the_same_key_creates_one_study(api: RunningApi) -> None:
    headers = {"Idempotency-Key": "k1"}
    first = api.client.post(STUDIES, json=body(), headers=headers)
    again = api.client.post(STUDIES, json=body(), headers=headers)
    other = api.client.post(STUDIES, json=body(name="other"), headers=headers)
    assert first.json() == again.json()
    assert (other.status_code, other.json()["error"]) == (409, "Conflict")
    assert api.store.studies().total == 1


MISTAKES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"space": "tny"}, "space", "unknown space tny", "tiny"),
    ({"deployment__model": "huge"}, "deployment.model", "has no model huge", "tiny-model"),
    ({"deployment__template": "none"}, "deployment.template", "unknown template none", "simulated-910c"),
    ({"sla": ["tpot_p42_ms <= 1"]}, "sla[0]", "unknown metric tpot_p42_ms", "tpot_p99_ms"),
    ({"sla": [{"metric": "speed", "op": "<=", "bound": 1}]}, "sla[0].metric", "unknown metric speed", "tpot_p99_ms"),
    ({"sla": ["ttft_ms <= 1 at c9"]}, "sla", "unknown level c9", "c1"),
    ({"budget__trials": 0}, "budget.trials", "must be at least 1", "1..100000"),
    ({"budget__trials": 3}, "budget.trials", "less than the 7 launches", "at least 7"),
    ({"budget__trials": "many"}, "budget.trials", "must be a whole number", "1..100000"),
    ({"budget__wall_time_s": ...}, "budget.wall_time_s", "is missing", ""),
    ({"budgt": {}}, "budgt", "unknown key", "budget"),
    ({"objective__metric": "speed"}, "objective.metric", "is not known here", "tpot_ms"),
    ({"name": "a b"}, "name", "is not of the right form", "letters, digits"),
    ({"workload__levels": []}, "workload.levels", "needs at least 1", ""),
    ({"baseline": {"max_num_seqs": {"a": 1}}}, "baseline.max_num_seqs", "does not fit here", "a whole number"),
    ({"baseline": {"speed": 1}}, "baseline.speed", "unknown knob", "buffer_mb"),
]


@pytest.mark.parametrize(
    ("change", "key", "message", "allowed"), MISTAKES, ids=[m[1] + str(m[0])[:40] for m in MISTAKES]
)
def test_a_mistake_is_named_with_its_key_and_what_would_do(
    api: RunningApi, change: dict[str, Any], key: str, message: str, allowed: str
) -> None:
    answer = api.client.post(STUDIES, json=body(**change))
    assert answer.status_code == 422
    problem = next(p for p in answer.json()["problems"] if p["key"] == key)
    assert message in problem["message"]
    assert allowed in ", ".join(problem["allowed"])
    assert api.store.studies().total == 0
    assert api.store.last_event() == 0


def test_several_mistakes_are_told_at_once(api: RunningApi) -> None:
    answer = api.client.post(STUDIES, json=body(budget__trials=0, name="", seed=-1))
    assert {p["key"] for p in answer.json()["problems"]} == {"budget.trials", "name", "seed"}
    assert answer.json()["detail"] == "the request has 3 problems"


@pytest.mark.parametrize(
    ("content", "key"),
    [(b"", "body"), (b"{", "body"), (b"[]", "body"), (b'"x"', "body"), (b"null", "body"), (b"3", "body")],
)
def test_what_is_no_study_at_all(api: RunningApi, content: bytes, key: str) -> None:
    answer = api.client.post(STUDIES, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert [p["key"] for p in answer.json()["problems"]] == [key]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b'{"a": "\\ud800"}', b'{"seed": 1e999}', b"NaN"])
def test_strange_bytes_are_refused_not_stumbled_over(api: RunningApi, content: bytes) -> None:
    answer = api.client.post(STUDIES, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in {400, 422}
    assert answer.json()["error"]


def test_listing_by_state_and_page(api: RunningApi) -> None:
    for name in ("one", "two", "three"):
        api.create(name=name)
    api.store.finish_study(1, StudyState.CANCELLED, "cancelled")
    page = api.get(STUDIES, state="running", offset=1, limit=1).json()
    assert (page["total"], page["offset"], page["limit"]) == (2, 1, 1)
    assert [item["study"]["spec"]["name"] for item in page["items"]] == ["two"]


@pytest.mark.parametrize(
    "query", [{"state": "asleep"}, {"limit": 501}, {"limit": 0}, {"offset": -1}, {"offset": 2**31}]
)
def test_a_wrong_query_names_its_parameter(api: RunningApi, query: dict[str, Any]) -> None:
    answer = api.get(STUDIES, **query)
    assert answer.status_code == 422
    assert [p["key"] for p in answer.json()["problems"]] == list(query)


def test_an_overview_tells_progress(api: RunningApi) -> None:
    study = api.create()
    measured(api.store, study, started(api.store, study, label="baseline"))
    failed(api.store, study, started(api.store, study))
    found = api.get(f"{STUDIES}/{study.id}").json()
    assert found["counts"] == {"measured": 1, "failed": 1}
    assert found["trials_total"] == 2
    assert found["best"]["number"] == 0


def test_cancel_and_resume(api: RunningApi) -> None:
    study = api.create()
    assert api.client.post(f"{STUDIES}/{study.id}/cancel").json()["study"]["state"] == "cancelled"
    again = api.client.post(f"{STUDIES}/{study.id}/cancel")
    assert (again.status_code, again.json()["error"]) == (409, "Conflict")
    assert api.client.post(f"{STUDIES}/{study.id}/resume").json()["study"]["state"] == "running"
    assert api.client.post(f"{STUDIES}/{study.id}/resume").status_code == 409


@pytest.mark.parametrize("path", ["", "/trials", "/trials/0", "/trials/0/log", "/recipe", "/export"])
def test_an_unknown_study_is_not_found(api: RunningApi, path: str) -> None:
    answer = api.get(f"{STUDIES}/77{path}")
    assert (answer.status_code, answer.json()["error"]) == (404, "NotFound")


def test_no_recipe_before_the_end(api: RunningApi) -> None:
    study = api.create()
    for path in ("recipe", "export"):
        answer = api.get(f"{STUDIES}/{study.id}/{path}")
        assert (answer.status_code, answer.json()["error"]) == (409, "NothingToExport")


def test_the_recipe_of_a_finished_study(api: RunningApi) -> None:
    study = done(api)
    found = Recipe.model_validate(api.get(f"{STUDIES}/{study.id}/recipe").json())
    assert found.confirmed
    assert found.changes == {"expansion_mode": (None, "AIV"), "draft_length": (None, 2)}


@pytest.mark.parametrize(
    ("form", "media_type"), [("sh", "text/x-shellscript"), ("env", "text/plain"), ("json", "application/json")]
)
def test_exports_are_files(api: RunningApi, form: str, media_type: str) -> None:
    study = done(api)
    answer = api.get(f"{STUDIES}/{study.id}/export", format=form)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].split(";")[0] == media_type
    assert answer.headers["Content-Disposition"] == f'attachment; filename="study-{study.id}-small-study.{form}"'
    assert answer.text.strip()
    if form == "json":
        assert json.loads(answer.text)["study_id"] == study.id


def test_an_unknown_export_format(api: RunningApi) -> None:
    answer = api.get(f"{STUDIES}/{done(api).id}/export", format="exe")
    assert answer.json()["problems"][0]["allowed"] == ["sh", "env", "json"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(key=st.sampled_from([*StudySpec.model_fields, "other"]), value=_JSON)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_a_study_is_answered(api: RunningApi, key: str, value: Any) -> None:
    content = json.dumps({**body(), key: value})
    answer = api.client.post(STUDIES, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in {201, 422}
    if answer.status_code == 201:
        assert api.get(answer.headers["Location"]).status_code == 200
    else:
        assert answer.json()["problems"]
