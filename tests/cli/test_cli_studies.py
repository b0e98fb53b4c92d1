"""`autotune study ...`, `watch`, `trials`, `trial`, `space ...`, `export` against a server that plays the service."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.client import Client
from autotune.cli.watch import follow
from autotune.domain.export import to_json
from autotune.domain.study import StudyState
from autotune.domain.trial import StudyPhase
from autotune.errors import Unavailable
from tests.cli.conftest import CommandLine
from tests.cli.fake_api import FakeApi, finished, overview, study
from tests.recipes import not_proven, recipe

STUDY = """\
name: small-study
space: tiny
deployment:
  template: simulated-910c
  model: tiny-model
workload:
  prompt_tokens: 64
  output_tokens: 16
  levels:
    - {concurrency: 1, requests: 16}
budget:
  trials: 20
  wall_time_s: 3600
"""


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


# --- create ---------------------------------------------------------------------------------


def test_create_posts_the_study_and_says_its_number(api: FakeApi, autotune: CommandLine, study_file: Path) -> None:
    api.says("POST /studies", overview(study()), status=201)
    done = autotune("study", "create", str(study_file))
    assert (done.code, done.out) == (0, "created study 3 small-study; `autotune watch 3` follows it\n")
    ((request, _, body),) = api.requests
    assert request == "POST /studies"
    assert body["workload"]["levels"] == [{"concurrency": 1, "requests": 16}]


def test_create_understands_a_study_without_progress(api: FakeApi, autotune: CommandLine, study_file: Path) -> None:
    api.says("POST /studies", overview(study()), status=201)
    done = autotune("study", "create", str(study_file), "--json")
    assert (done.code, done.json["id"]) == (0, 3)


def test_an_invalid_file_never_reaches_the_server(api: FakeApi, autotune: CommandLine, study_file: Path) -> None:
    study_file.write_text(STUDY.replace("trials: 20", "trials: 0").replace("space", "spaces"))
    done = autotune("study", "create", str(study_file))
    assert done.code == 2
    assert done.out == ""
    assert f"autotune: {study_file} has 3 problems" in done.err
    assert f"{study_file}:2: spaces: unknown key (allowed: name, space," in done.err
    assert f"{study_file}:12: budget.trials: is 0 and must be at least 1 (allowed: 1..100000)" in done.err
    assert api.requests == []


def test_problems_can_be_had_as_json(autotune: CommandLine, study_file: Path) -> None:
    study_file.write_text(STUDY.replace("trials: 20", "trials: 0"))
    done = autotune("study", "create", str(study_file), "--json")
    assert (done.code, done.out) == (2, "")
    body = json.loads(done.err)
    assert body["error"] == "InvalidStudy"
    assert (body["problems"][0]["key"], body["problems"][0]["line"]) == ("budget.trials", 12)


def test_a_missing_file_is_wrong_use(autotune: CommandLine, tmp_path: Path) -> None:
    done = autotune("study", "create", str(tmp_path / "none.yaml"))
    assert done.code == 2
    assert "No such file" in done.err


def test_problems_that_the_server_finds_get_lines_of_the_file(
    api: FakeApi, autotune: CommandLine, study_file: Path
) -> None:
    problems = [
        {
            "key": "space",
            "message": "unknown space tiny",
            "mend": "",
            "allowed": ["a", "b"],
            "line": None,
            "file": None,
        },
        {"key": "deployment.model", "message": "no such model", "mend": "take another", "allowed": []},
        {"key": "baseline (batch-covers-load)", "message": "requests would queue"},
        {"key": "workload.levels[0].requests", "message": "too few"},
    ]
    api.refuses("POST /studies", 422, "InvalidStudy", "the study cannot be run", problems)
    done = autotune("study", "create", str(study_file))
    assert done.code == 2
    assert f"{study_file}:2: space: unknown space tiny (allowed: a, b)" in done.err
    assert f"{study_file}:5: deployment.model: no such model; take another" in done.err
    assert f"{study_file}:1: baseline (batch-covers-load): requests would queue" in done.err
    assert f"{study_file}:10: workload.levels[0].requests: too few" in done.err
    lines = [int(text.split(":")[1]) for text in done.err.splitlines()[1:]]
    assert lines == sorted(lines)


def test_create_and_watch(api: FakeApi, autotune: CommandLine, study_file: Path) -> None:
    api.says("POST /studies", overview(study()), status=201)
    finished(api)
    done = autotune("study", "create", str(study_file), "--watch")
    assert done.code == 0
    assert "created study 3" in done.err
    assert "CONFIRMED" in done.out


# --- list, show, cancel, resume -------------------------------------------------------------


def test_list_reads_every_page(api: FakeApi, autotune: CommandLine) -> None:
    api.page_limit = 2
    api.lists["/studies"] = [overview(study(id=n), 8.0, measured=4) for n in range(5, 0, -1)]
    done = autotune("study", "list")
    assert done.code == 0
    rows = done.out.splitlines()
    assert [row.split()[0] for row in rows] == ["id", "5", "4", "3", "2", "1"]
    assert "small-study  running  search    4/20     8  +20.0 %  2026-01-02 03:04" in rows[1]
    assert autotune("study", "list", "--json").json["total"] == 5


def test_an_empty_list_says_so(api: FakeApi, autotune: CommandLine) -> None:
    api.lists["/studies"] = []
    assert autotune("study", "list").out == "no studies\n"
    assert autotune("study", "list", "--json").json == {"items": [], "total": 0}


def test_show_tells_how_far_a_study_is(api: FakeApi, autotune: CommandLine) -> None:
    api.says("GET /studies/3", overview(study(), 8.0, measured=4, failed=1, running=2))
    done = autotune("study", "show", "3")
    assert done.code == 0
    assert "5 trials finished, search, 2 running, 1 failed, best 8 ms (+20.0 %, trial 7)" in done.out
    assert "ttft_p99_ms <= 400" in done.out
    assert autotune("study", "show", "3", "--json").json["counts"] == {"measured": 4, "failed": 1, "running": 2}


def test_show_gives_the_result_of_a_study_that_is_done(api: FakeApi, autotune: CommandLine) -> None:
    finished(api)
    assert "CONFIRMED: 20.0 % better" in autotune("study", "show", "3").out


def test_cancel_and_resume_say_the_new_state(api: FakeApi, autotune: CommandLine) -> None:
    api.says("POST /studies/3/cancel", overview(study(StudyState.CANCELLED)))
    api.says("POST /studies/3/resume", overview(study()))
    assert autotune("study", "cancel", "3").out == "study 3 is cancelled\n"
    assert autotune("study", "resume", "3").out == "study 3 is running\n"
    assert autotune("study", "cancel", "3", "--json").json["state"] == "cancelled"


def test_what_the_server_refuses_ends_with_one(api: FakeApi, autotune: CommandLine) -> None:
    api.refuses("POST /studies/3/cancel", 409, "Conflict", "study 3 is done")
    done = autotune("study", "cancel", "3")
    assert (done.code, done.out, done.err) == (1, "", "autotune: study 3 is done\n")
    done = autotune("study", "show", "9", "--json")
    assert done.code == 1
    assert json.loads(done.err)["error"] == "NotFound"
    api.refuses("GET /studies/4", 500, "InternalError", "the service failed; its log says why")
    assert autotune("study", "show", "4").code == 1


@pytest.mark.parametrize(
    "words", [("study", "list"), ("watch", "3"), ("export", "3", "--format", "sh"), ("trials", "3")]
)
def test_no_server_is_told_plainly(autotune: CommandLine, words: tuple[str, ...]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        done = autotune(*words, url=url)
    assert done.code == 1
    assert done.err == f"autotune: no server answers at {url}; start it with `autotune up`\n"


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "http://", "http://[::1", "http://host:99999"])
def test_a_wrong_url_is_wrong_use(autotune: CommandLine, url: str) -> None:
    done = autotune("study", "list", url=url)
    assert done.code == 2
    assert "is no URL of a server" in done.err


@pytest.mark.parametrize("answer", [b"<html>hello</html>", b"", b"[]", b"{}", b'{"items": 3}'])
def test_another_service_on_the_port_is_told(api: FakeApi, autotune: CommandLine, answer: bytes) -> None:
    api.says("GET /studies", answer)
    api.says("GET /studies/3", answer)
    for words in (("study", "list"), ("study", "show", "3")):
        done = autotune(*words)
        assert done.code == 1
        assert "is no autotune server of this version" in done.err


# --- watch ----------------------------------------------------------------------------------


def test_watch_shows_plain_progress_and_the_result(api: FakeApi, autotune: CommandLine) -> None:
    finished(api)
    end = api.answers["GET /studies/3"][0][1]
    gate = study(phase=StudyPhase.GATE)
    api.says("GET /studies/3", overview(gate, running=1), overview(study(), 9.0, measured=2, running=1), end)
    done = autotune("watch", "3")
    assert done.code == 0
    assert done.err.splitlines() == [
        "study 3 small-study: 0 of at most 20 trials, gate, 1 running, baseline 10 ms",
        "study 3 small-study: 2 of at most 20 trials, search, 1 running, best 9 ms (+10.0 %, trial 7)",
        "study 3 small-study: 6 of at most 20 trials, search, 2 failed, best 8 ms (+20.0 %, trial 7)",
    ]
    assert "\x1b" not in done.err
    assert "TPOT c8" in done.out
    assert "21.0 % [20.0, 22.0], 3 launches" in done.out
    assert 'expansion_mode  unset -> "AIV"' in done.out
    assert (
        "6 trials: 1 cancelled, 1 failed: crash, 1 failed: out_of_memory, 2 measured, 1 outside the limits" in done.out
    )


def test_watch_as_json(api: FakeApi, autotune: CommandLine) -> None:
    finished(api)
    content = autotune("watch", "3", "--json").json
    assert content["study"]["state"] == "done"
    assert content["outcomes"]["failed: crash"] == 1
    assert content["recipe"] == json.loads(to_json(recipe()))


def test_a_study_without_a_proven_winner_is_done(api: FakeApi, autotune: CommandLine) -> None:
    finished(api)
    api.says("GET /studies/3/recipe", not_proven().model_dump(mode="json"))
    done = autotune("watch", "3")
    assert done.code == 0
    assert "NOT PROVEN: no candidate is proven to be better" in done.out
    assert "the interval holds 0" in done.out


@pytest.mark.parametrize("state", [StudyState.FAILED, StudyState.CANCELLED])
def test_a_study_that_failed_ends_with_one_and_its_finding(
    api: FakeApi, autotune: CommandLine, state: StudyState
) -> None:
    finished(api, state, finding="the baseline does not start")
    done = autotune("watch", "3")
    assert done.code == 1
    assert "the baseline does not start" in done.out
    assert autotune("watch", "3", "--json").json["recipe"] is None


class Notes:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.notes: list[str] = []

    def show(self, overview: Any) -> None:
        self.shown.append(overview)

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_server_that_is_away_for_a_moment_is_waited_for(api: FakeApi) -> None:
    finished(api)
    end = api.answers["GET /studies/3"][0][1]
    away = {"error": "Unavailable", "detail": "the database is locked", "problems": []}
    running = overview(study(), measured=1)
    api.answers["GET /studies/3"] = [(200, running), (503, away), (503, away), (200, running), (200, end)]
    notes = Notes()
    with Client(api.url) as client:
        assert follow(client, 3, notes, poll_s=0.01).study.state is StudyState.DONE
        assert len(notes.shown) == 3
        assert len(notes.notes) == 1
        api.answers["GET /studies/3"] = [(200, running), (503, away)]
        with pytest.raises(Unavailable, match="the database is locked"):
            follow(client, 3, notes, poll_s=0.01, patience_s=0.05)
        api.answers["GET /studies/3"] = [(503, away)]
        with pytest.raises(Unavailable):
            follow(client, 3, notes, poll_s=0.01)
