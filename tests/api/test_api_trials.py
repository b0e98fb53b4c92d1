"""Trials over REST, and the log of a running one."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.domain.conditions import Conditions
from autotune.domain.failure import FailureClass
from autotune.domain.objective import judge
from autotune.domain.study import Study
from autotune.domain.trial import StudyPhase
from autotune.engine.study_loop import attempt_uid
from tests import builders
from tests.api.running_api import EVIL, RunningApi, failed, measured, started


@pytest.fixture
def study(api: RunningApi) -> Study:
    """Trial 0 is the baseline, 1 meets the SLA, 2 breaks it, 3 failed, 4 runs."""
    found = api.create()
    store = api.store
    measured(store, found, started(store, found, StudyPhase.GATE, "baseline"), tpot_ms=10)
    measured(store, found, started(store, found, values={"draft_length": 3}), tpot_ms=8)
    measured(store, found, started(store, found, values={"max_num_seqs": 8}), tpot_ms=9, ttft_ms=900.0)
    failed(store, found, started(store, found, values={"buffer_mb": 4096}), log_tail=EVIL)
    started(store, found, values={"expansion_mode": "AIV"})
    return found


def test_a_line_says_what_a_table_shows(api: RunningApi, study: Study) -> None:
    page = api.get(f"/api/v1/studies/{study.id}/trials").json()
    assert page["total"] == 5
    line = page["items"][1]
    assert line["changes"] == {"draft_length": [None, 3]}
    assert line["tpot_ms"] == {"c1": 8, "c4": 8, "c8": 8}
    assert line["ttft_ms"]["c8"] == 100
    assert line["verdict"]["feasible"] is True
    assert line["verdict"]["objective"] == pytest.approx(8)
    assert "plan" not in line
    broken = page["items"][2]["verdict"]
    assert (broken["feasible"], len(broken["reasons"])) == (False, 3)
    assert page["items"][3]["failure"] == {
        "phase": "ready",
        "failure_class": "out_of_memory",
        "summary": "the device ran out of memory",
    }


def test_a_trial_that_can_not_be_compared_shows_as_such(api: RunningApi, study: Study) -> None:
    trial = started(api.store, study, values={"draft_length": 4})
    uid = attempt_uid(study, trial.number, 1)
    found = builders.outcome(uid, measurement=builders.measurement(tpot_ms=5, uncached_tokens=900.0))
    assert found.measurement is not None
    reference = Conditions(uncached_tokens={"c8": 11392.0})
    verdict = judge(found.measurement, study.spec.objective, study.spec.sla, reference)
    api.store.finish_trial(study.id, trial.number, 1, found, verdict)
    reason = "not comparable: 900 uncached tokens a request at c8, the baseline had 11392"
    told = {"feasible": False, "comparable": False, "objective": None, "reasons": [reason]}
    line = api.get(f"/api/v1/studies/{study.id}/trials").json()["items"][trial.number]
    assert line["verdict"] == told
    detail = api.get(f"/api/v1/studies/{study.id}/trials/{trial.number}").json()
    assert {key: detail["verdict"][key] for key in told} == told
    assert detail["measurement"]["levels"]["c8"]["uncached_tokens_mean"] == 900
    assert api.get(f"/api/v1/studies/{study.id}").json()["best"]["number"] == 1


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({"state": "measured"}, [0, 1, 2]),
        ({"phase": "gate"}, [0]),
        ({"failure_class": "out_of_memory"}, [3]),
        ({"failure_class": "hang"}, []),
        ({"feasible": "true"}, [0, 1]),
        ({"feasible": "false"}, [2]),
        ({"offset": 3, "limit": 1}, [3]),
        ({"offset": 99}, []),
    ],
)
def test_lists_are_filtered_and_cut(api: RunningApi, study: Study, query: dict[str, Any], numbers: list[int]) -> None:
    page = api.get(f"/api/v1/studies/{study.id}/trials", **query).json()
    assert [item["number"] for item in page["items"]] == numbers


@pytest.mark.parametrize("query", [{"limit": 501}, {"feasible": "perhaps"}, {"failure_class": "x"}, {"phase": "x"}])
def test_a_wrong_filter_is_refused(api: RunningApi, study: Study, query: dict[str, Any]) -> None:
    answer = api.get(f"/api/v1/studies/{study.id}/trials", **query)
    assert answer.status_code == 422
    assert answer.json()["problems"][0]["key"] == next(iter(query))


def test_before_the_first_launch_the_space_says_what_the_baseline_is(api: RunningApi) -> None:
    study = api.create()
    started(api.store, study, values={"draft_length": 3})
    line = api.get(f"/api/v1/studies/{study.id}/trials").json()["items"][0]
    assert line["changes"] == {"draft_length": [None, 3]}


def test_one_trial_comes_whole(api: RunningApi, study: Study) -> None:
    found = api.get(f"/api/v1/studies/{study.id}/trials/1").json()
    assert found["changes"] == {"draft_length": [None, 3]}
    assert found["plan"]["roles"]["server"]["argv"]
    assert found["measurement"]["levels"]["c4"]["tpot_ms"]["n"] == 16
    assert found["provenance"]["host"] == "host-a"
    assert api.get(f"/api/v1/studies/{study.id}/trials/99").status_code == 404


def test_a_failure_comes_with_its_context_and_what_the_study_does_about_it(api: RunningApi, study: Study) -> None:
    path = f"/api/v1/studies/{study.id}/trials"
    trial = started(api.store, study, values={"buffer_mb": 2048})
    log = "loading\n(Worker) RuntimeError: NPU out of memory\nbye\n"
    failed(api.store, study, trial, log_tail=log)
    found = api.get(f"{path}/{trial.number}").json()
    assert found["context"] == {"lines": ["loading", "(Worker) RuntimeError: NPU out of memory", "bye"], "decisive": 1}
    assert found["policy"]["consequence"] == "learned"
    assert "not tried again" in found["policy"]["sentence"]
    about = found["about"]
    assert about["means"].startswith("Device memory does not hold")
    assert about["retry"] == "never"
    measured_one = api.get(f"{path}/1").json()
    assert (measured_one["context"], measured_one["about"], measured_one["policy"]) == (None, None, None)
    assert [a["ended"] for a in measured_one["attempts"]] == ["measured"]


def test_the_attempts_of_a_trial_are_told_with_host_class_and_decisive_line(api: RunningApi, study: Study) -> None:
    trial = started(api.store, study, values={"buffer_mb": 2048})
    gone = builders.failure(
        FailureClass.INFRASTRUCTURE,
        summary="the worker was lost",
        decisive_line="raylet died",
        log_tail="a secret of the log",
        host="host-b",
    )
    api.store.lose_attempt(study.id, trial.number, 1, gone)
    api.store.start_attempt(study.id, trial.number, attempt_uid(study, trial.number, 2))
    answer = api.get(f"/api/v1/studies/{study.id}/trials/{trial.number}")
    first, second = answer.json()["attempts"]
    assert {key: first[key] for key in ("attempt", "ended", "host", "failure_class", "phase")} == {
        "attempt": 1,
        "ended": "lost",
        "host": "host-b",
        "failure_class": "infrastructure",
        "phase": "ready",
    }
    assert (first["summary"], first["decisive_line"]) == ("the worker was lost", "raylet died")
    assert first["started_at"] <= first["ended_at"]
    assert first["policy"]["consequence"] == "retried"
    assert "another host" in first["policy"]["sentence"]
    assert (second["attempt"], second["ended"], second["failure_class"]) == (2, None, None)
    assert "a secret of the log" not in answer.text


def test_a_stored_log_is_text_and_nothing_else(api: RunningApi, study: Study) -> None:
    answer = api.get(f"/api/v1/studies/{study.id}/trials/3/log")
    assert answer.text == EVIL
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_log_of_a_running_trial_is_read_as_it_grows(api: RunningApi, study: Study) -> None:
    path = f"/api/v1/studies/{study.id}/trials/4/log"
    assert api.get(path).text == ""
    folder = api.settings.directory.attempts / attempt_uid(study, 4, 1)
    folder.mkdir(parents=True)
    log = folder / "server.log"
    log.write_bytes(b"loading\n")
    assert api.get(path).text == "loading\n"
    log.write_bytes(b"x" * 200_000 + b"\nready \xff\n")
    assert api.get(path).text.endswith("x\nready �\n")
    assert len(api.get(path).text) < 65_000


def test_a_waiting_trial_has_no_log(api: RunningApi, study: Study) -> None:
    api.store.cancel_trial(study.id, 4)
    assert api.get(f"/api/v1/studies/{study.id}/trials/4/log").text == ""


def test_spaces_and_templates(api: RunningApi) -> None:
    assert api.get("/api/v1/spaces").json() == [
        {
            "name": "tiny",
            "engine": "vllm-ascend",
            "chip": "ascend-910c",
            "about": "A space for tests.",
            "knobs": 4,
            "recipes": 1,
        }
    ]
    assert api.get("/api/v1/spaces/tiny").json()["knobs"][0]["name"] == "expansion_mode"
    assert api.get("/api/v1/spaces/big").status_code == 404
    answer = api.get("/api/v1/templates")
    assert answer.json()[0]["models"] == ["tiny-model"]
    assert "secret" not in answer.text


def test_a_space_on_one_stack(api: RunningApi) -> None:
    found = api.get("/api/v1/spaces/tiny", stack="engine=0.23,chip=910C", include=["tier3"]).json()
    assert found["space"]["stack"] == {"engine": "0.23", "cann": None, "torch_npu": None, "chip": "910C"}
    assert found["left_out"] == []
    assert api.get("/api/v1/spaces/tiny", include="buffer_mb").json()["space"]["name"] == "tiny"
    for name, value in (("stack", "engin=1"), ("stack", "engine=new"), ("include", "none")):
        refused = api.get("/api/v1/spaces/tiny", **{name: value})
        assert refused.status_code == 422
        assert [p["key"] for p in refused.json()["problems"]] == [name]
