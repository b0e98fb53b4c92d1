"""`autotune trials`, `trial`, `space ...` and `export` against a server that plays the service."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.cli.client import Client
from autotune.cli.result import outcomes_of
from autotune.domain.export import to_env, to_json, to_sh
from autotune.domain.objective import Verdict
from autotune.domain.server_truth import ServerTruth
from autotune.domain.trial import TrialState
from autotune.errors import InvalidRequest
from tests import builders
from tests.cli.conftest import CommandLine
from tests.cli.fake_api import FakeApi, detail, finished, line, some_trials, trial
from tests.recipes import recipe

# --- trials ---------------------------------------------------------------------------------


def test_trials_are_listed_with_settings_or_the_reason(api: FakeApi, autotune: CommandLine) -> None:
    api.lists["/studies/3/trials"] = [line(t) for t in some_trials()]
    done = autotune("trials", "3")
    assert done.code == 0
    rows = done.out.splitlines()
    assert len(rows) == 7
    assert "tpot c8" in rows[0]
    assert "buffer_mb=128, expansion_mode=AIV" in rows[2]
    assert "ttft_p99_ms <= 400 is broken at c1" in rows[3]
    assert "out_of_memory at ready: the device ran out of memory [draft_length=8]" in rows[4]
    assert "crash at load: the server ended [2J while under load" in rows[5]
    assert "\x1b" not in done.out


def test_trials_can_be_chosen(api: FakeApi, autotune: CommandLine) -> None:
    api.lists["/studies/3/trials"] = [line(t) for t in some_trials()]
    done = autotune("trials", "3", "--state", "failed", "--phase", "search", "--failure", "crash", "--json")
    assert [item["number"] for item in done.json["items"]] == [4]
    assert autotune("trials", "3", "--state", "running").out == "no trials\n"
    api.lists.clear()
    problem = {"key": "state", "message": "'gone' is not known", "allowed": ["waiting", "running"]}
    api.refuses("GET /studies/3/trials", 422, "InvalidRequest", "the request has a problem", [problem])
    done = autotune("trials", "3", "--state", "gone")
    assert done.code == 2
    assert "allowed: waiting, running" in done.err


def test_one_trial_is_shown_with_command_and_figures(api: FakeApi, autotune: CommandLine) -> None:
    shown = trial(1, values={"buffer_mb": 128}, warnings=("batch-covers-load: requests would queue",))
    api.says("GET /studies/3/trials/1", detail(shown))
    done = autotune("trial", "3", "1")
    assert done.code == 0
    assert "buffer_mb=128" in done.out
    assert "serve --host '{host}' --port '{port}'" in done.out
    assert "requests would queue" in done.out
    assert "c8" in done.out
    assert autotune("trial", "3", "1", "--json").json["number"] == 1


def test_the_servers_own_counters_are_shown_where_it_has_any(api: FakeApi, autotune: CommandLine) -> None:
    shown = trial(1)
    assert shown.measurement is not None
    truth = ServerTruth(engine="vllm", finished=16, generation_tokens=256, drafts=100, accepted_tokens=150)
    levels = {
        name: level.model_copy(update={"server": {"server": truth} if name == "c8" else {}})
        for name, level in shown.measurement.levels.items()
    }
    told = shown.model_copy(update={"measurement": shown.measurement.model_copy(update={"levels": levels})})
    api.says("GET /studies/3/trials/1", detail(told))
    (line,) = [
        line for line in autotune("trial", "3", "1").out.splitlines() if line.startswith("c8  ") and "256" in line
    ]
    assert line.split() == ["c8", "server", "16", "256", "-", "-", "-", "2.5", "-"]
    api.says("GET /studies/3/trials/1", detail(shown))
    assert "by the server" not in autotune("trial", "3", "1").out


def test_a_trial_that_can_not_be_compared_shows_as_such(api: FakeApi, autotune: CommandLine) -> None:
    why = "900 uncached tokens a request at c8, the baseline had 11392"
    verdict = Verdict(feasible=False, comparable=False, objective=None, reasons=(f"not comparable: {why}",))
    shown = trial(1, values={"buffer_mb": 128}, tpot_ms=5.0).model_copy(update={"verdict": verdict})
    api.says("GET /studies/3/trials/1", detail(shown))
    row = next(text for text in autotune("trial", "3", "1").out.splitlines() if "uncached" in text)
    assert row.split("  ")[0] == "not comparable"
    assert why in row
    api.lists["/studies/3/trials"] = [line(shown)]
    assert f"not comparable: {why}"[:60] in autotune("trials", "3").out
    with Client(api.url) as client:
        assert outcomes_of(client, 3) == {"not comparable": 1}


def test_a_failed_trial_is_shown_with_its_log(api: FakeApi, autotune: CommandLine) -> None:
    api.says("GET /studies/3/trials/3", detail(trial(3, TrialState.FAILED)))
    done = autotune("trial", "3", "3")
    assert "failed at ready: out_of_memory, exit code 3" in done.out
    assert "the end" in done.out
    assert "\x1b" not in done.out


ABOUT = {
    "means": "Device memory is too small.",
    "cause": "Too large buffers.",
    "settings": [{"name": "HCCL_BUFFSIZE", "asked": "2048"}, {"name": "--max-num-seqs", "asked": None}],
    "retry": "never",
}


def test_a_failure_is_told_with_its_attempts_context_and_policy(api: FakeApi, autotune: CommandLine) -> None:
    answer = detail(trial(3, TrialState.FAILED))
    lost = {
        "attempt": 1,
        "started_at": "2026-01-02T03:04:05Z",
        "ended": "lost",
        "host": "host-b",
        "failure_class": "infrastructure",
        "summary": "the worker was lost",
        "decisive_line": "raylet died",
    }
    last = {"attempt": 2, "started_at": "2026-01-02T03:05:05Z", "ended": "failed", "failure_class": "out_of_memory"}
    context = {"lines": ["loading", "NPU \x1b[31mout of memory", "bye"], "decisive": 1}
    policy = {"consequence": "learned", "sentence": "The search is told."}
    api.says(
        "GET /studies/3/trials/3",
        {**answer, "attempts": [lost, last], "context": context, "about": ABOUT, "policy": policy},
    )
    out = autotune("trial", "3", "3").out
    lines = [line.split() for line in out.splitlines()]
    assert ["1", "2026-01-02", "03:04:05", "host-b", "lost", "infrastructure", "raylet", "died"] in lines
    assert ["2", "2026-01-02", "03:05:05", "-", "failed", "out_of_memory", "-"] in lines
    assert "  Device memory is too small." in out
    assert "  likely cause: Too large buffers." in out
    assert "  settings involved: HCCL_BUFFSIZE=2048, --max-num-seqs" in out
    assert "  what the study does: The search is told." in out
    assert "  loading\n> NPU " in out
    assert "\x1b" not in out


# --- spaces ---------------------------------------------------------------------------------


def test_spaces_are_listed_and_shown(api: FakeApi, autotune: CommandLine) -> None:
    space = builders.space()
    entry = {"name": "tiny", "engine": "vllm-ascend", "chip": "ascend-910c", "about": "x", "knobs": 4, "recipes": 1}
    api.says("GET /spaces", [entry])
    api.says("GET /spaces/tiny", space.model_dump(mode="json"))
    assert "tiny  vllm-ascend  ascend-910c      4        1  x" in autotune("space", "list").out
    assert autotune("space", "list", "--json").json == [entry]
    shown = autotune("space", "show", "tiny")
    assert "HCCL_OP_EXPANSION_MODE" in shown.out
    assert "AIV, AI_CPU, unset" in shown.out
    assert "--speculative-config num_speculative_tokens" in shown.out
    assert "batch-covers-load" in shown.out
    assert "expansion_mode=AIV" in shown.out
    assert autotune("space", "show", "tiny", "--json").json["name"] == "tiny"
    assert autotune("space", "show", "none").code == 1


# --- export ---------------------------------------------------------------------------------


def test_a_recipe_is_printed_as_it_is(api: FakeApi, autotune: CommandLine) -> None:
    finished(api)
    assert autotune("export", "3", "--format", "sh").out == to_sh(recipe())
    assert autotune("export", "3", "--format", "env").out == to_env(recipe())
    assert autotune("export", "3", "--format", "json").out == to_json(recipe())
    assert autotune("export", "3", "--format", "sh", "--baseline").out == to_sh(recipe(), baseline=True)


def test_a_recipe_is_written_to_a_file(api: FakeApi, autotune: CommandLine, tmp_path: Path) -> None:
    finished(api)
    target = tmp_path / "launch.sh"
    done = autotune("export", "3", "--format", "sh", "--output", str(target))
    assert (done.code, done.out) == (0, "")
    assert target.read_text() == to_sh(recipe())
    assert os.access(target, os.X_OK)
    assert list(tmp_path.iterdir()) == [target]
    done = autotune("export", "3", "--format", "env", "-o", str(tmp_path / "env"), "--json")
    assert done.json["output"] == str(tmp_path / "env")
    assert not os.access(tmp_path / "env", os.X_OK)
    done = autotune("export", "3", "--format", "env", "-o", str(tmp_path / "none" / "env"))
    assert done.code == 2


def test_export_as_json_holds_the_content(api: FakeApi, autotune: CommandLine) -> None:
    finished(api)
    assert autotune("export", "3", "--format", "sh", "--json").json["content"] == to_sh(recipe())
    assert autotune("export", "3", "--format", "json", "--json").json["content"]["confirmed"] is True


def test_a_study_without_result_has_nothing_to_export(api: FakeApi, autotune: CommandLine) -> None:
    api.refuses("GET /studies/3/recipe", 409, "NothingToExport", "study 3 is running in phase search")
    done = autotune("export", "3", "--format", "sh")
    assert (done.code, done.out) == (1, "")
    assert "study 3 is running" in done.err


def test_a_client_error_without_problems_is_wrong_use(api: FakeApi) -> None:
    api.refuses("GET /x", 413, "ContentTooLarge", "the body is larger than 1 MB")
    with Client(api.url) as client, pytest.raises(InvalidRequest, match="larger than 1 MB"):
        client.get("/x")
