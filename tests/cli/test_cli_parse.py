"""`autotune space parse`, and a study whose baseline is a launch script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.domain.space import DeadSetting, Rename, Rule, SearchSpace, Severity
from autotune.domain.stack import Needs
from tests import builders
from tests.cli.conftest import CommandLine
from tests.cli.fake_api import FakeApi, overview, study
from tests.cli.test_cli_studies import STUDY

SCRIPT = """\
#!/bin/bash
export HCCL_OP_EXPANSION_MODE=AIV OLD=1
numactl -C 0-3 vllm serve /models/m --port 8000 \\
  --max_num_seqs=32 --max-batch 4 \\
  --speculative-config '{"num_speculative_tokens": 3, "gone": 1}' --foo
"""


def space(**changes: Any) -> SearchSpace:
    return builders.space(
        renames=(Rename(old="env OLD", new="env NEW", needs=Needs(engine=">=0.23")),),
        dead=(DeadSetting(key="--speculative-config gone", why="went"),),
        **changes,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def served(api: FakeApi) -> FakeApi:
    api.says("GET /spaces/tiny", space().model_dump(mode="json"))
    return api


def test_json_has_the_six_keys(served: FakeApi, autotune: CommandLine, script: Path) -> None:
    done = autotune("space", "parse", "tiny", str(script), "--stack", "engine=0.23", "--json")
    assert done.code == 0
    assert set(done.json) == {"candidate", "fixed", "unknown", "unread", "renamed", "findings"}
    assert done.json["candidate"] == {"expansion_mode": "AIV", "max_num_seqs": 32, "draft_length": 3}
    assert [entry["key"] for entry in done.json["fixed"]] == ["model", "--port"]
    assert [entry["key"] for entry in done.json["unknown"]] == ["env NEW", "--max-batch", "--foo"]
    assert [entry["key"] for entry in done.json["unread"]] == ["--speculative-config gone"]
    assert [(entry["old"], entry["new"]) for entry in done.json["renamed"]] == [("env OLD", "env NEW")]
    (finding,) = done.json["findings"]
    assert set(finding) == {"rule", "severity", "message"}
    assert (finding["rule"], finding["severity"]) == ("prefix-dropped", "warn")


def test_the_stack_decides_what_is_renamed(served: FakeApi, autotune: CommandLine, script: Path) -> None:
    done = autotune("space", "parse", "tiny", str(script), "--stack", "engine=0.22", "--json")
    assert done.json["renamed"] == []
    wrong = autotune("space", "parse", "tiny", str(script), "--stack", "motor=1")
    assert wrong.code == 2
    assert "--stack: unknown part motor" in wrong.err


def test_words_for_people(served: FakeApi, autotune: CommandLine, script: Path) -> None:
    done = autotune("space", "parse", "tiny", str(script), "--stack", "engine=0.23")
    assert (done.code, done.err) == (0, "")
    blocks = dict(block.split(":", maxsplit=1) for block in done.out.split("\n\n"))
    assert blocks["tiny"].startswith(" launch of server (line 3)")
    assert [line.split() for line in blocks["the candidate"].splitlines()[1:]] == [
        ["expansion_mode", "AIV"],
        ["max_num_seqs", "32"],
        ["draft_length", "3"],
    ]
    assert "--foo" in blocks["unknown to the space"]
    assert "went" in blocks["not read by this version"]
    assert "env OLD  ->  env NEW" in blocks["renamed in this version"]
    assert "warn  prefix-dropped  line 3: " in blocks["findings"]


def test_a_space_may_be_a_file_and_then_no_server_is_asked(
    api: FakeApi, autotune: CommandLine, script: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(space().model_dump(mode="json")))
    done = autotune("space", "parse", str(path), str(script), "--json")
    assert (done.code, done.json["candidate"]["max_num_seqs"]) == (0, 32)
    assert api.requests == []


def test_a_launch_that_the_engine_refuses_gives_1(api: FakeApi, autotune: CommandLine, script: Path) -> None:
    rule = Rule(
        name="few-seats", severity=Severity.REFUSE, require="knobs.max_num_seqs < 20", why="too many", mend="take 16"
    )
    api.says("GET /spaces/tiny", space(rules=(rule,)).model_dump(mode="json"))
    done = autotune("space", "parse", "tiny", str(script), "--json")
    assert done.code == 1
    assert {"rule": "few-seats", "severity": "refuse", "message": "too many; take 16"} in done.json["findings"]


@pytest.mark.parametrize("content", ["echo nothing\n", None])
def test_what_cannot_be_read_gives_2(
    served: FakeApi, autotune: CommandLine, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "run.sh"
    if content is not None:
        path.write_text(content)
    done = autotune("space", "parse", "tiny", str(path), "--json")
    assert (done.code, done.out) == (2, "")
    assert json.loads(done.err)["problems"]


def test_an_unknown_space_gives_1(api: FakeApi, autotune: CommandLine, script: Path) -> None:
    assert autotune("space", "parse", "tiny", str(script)).code == 1


# --- as the baseline of a study -------------------------------------------------------------


def write_study(folder: Path, baseline: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(f"{STUDY}baseline: {baseline}\n")
    return path


def test_a_script_is_the_baseline_of_a_study(served: FakeApi, autotune: CommandLine, script: Path) -> None:
    served.says("POST /studies", overview(study()), status=201)
    done = autotune("study", "create", str(write_study(script.parent, "{from: run.sh}")))
    assert done.code == 0
    _, _, body = served.requests[-1]
    assert body["baseline"] == {"expansion_mode": "AIV", "max_num_seqs": 32, "draft_length": 3}
    assert f"autotune: {script}: --foo=true is unknown to the space\n" in done.err
    assert f"autotune: {script}: --speculative-config gone=1 is not read by this version: went\n" in done.err
    assert "prefix-dropped (warn): line 3" in done.err


def test_what_the_script_leaves_unset_is_unset_in_the_baseline(
    api: FakeApi, autotune: CommandLine, script: Path
) -> None:
    given = builders.space(baseline={"max_num_seqs": 16, "buffer_mb": 256})
    api.says("GET /spaces/tiny", given.model_dump(mode="json"))
    api.says("POST /studies", overview(study()), status=201)
    assert autotune("study", "create", str(write_study(script.parent, "{from: run.sh}"))).code == 0
    assert api.requests[-1][2]["baseline"]["buffer_mb"] is None


@pytest.mark.parametrize(
    ("baseline", "message"),
    [
        ("{from: none.sh}", "baseline.from: "),
        ("{from: 3}", "baseline.from: must be the path of a launch script"),
        ("{from: run.sh, max_num_seqs: 8}", "baseline.from: stands beside max_num_seqs; give knobs or a file"),
    ],
)
def test_a_baseline_that_cannot_be_read_never_reaches_the_server(
    served: FakeApi, autotune: CommandLine, script: Path, baseline: str, message: str
) -> None:
    path = write_study(script.parent, baseline)
    done = autotune("study", "create", str(path))
    assert done.code == 2
    assert f"{path}:14: {message}" in done.err
    assert [request for request, _, _ in served.requests if request == "POST /studies"] == []


def test_other_problems_of_the_study_keep_their_lines(served: FakeApi, autotune: CommandLine, script: Path) -> None:
    path = write_study(script.parent, "{from: run.sh}")
    path.write_text(path.read_text().replace("trials: 20", "trials: 0"))
    done = autotune("study", "create", str(path))
    assert done.code == 2
    assert f"{path}:12: budget.trials" in done.err


def test_a_problem_that_the_server_finds_in_the_baseline_gets_its_line(
    served: FakeApi, autotune: CommandLine, script: Path
) -> None:
    served.refuses(
        "POST /studies", 422, "InvalidStudy", "no", [{"key": "baseline.max_num_seqs", "message": "is out of range"}]
    )
    path = write_study(script.parent, "{from: run.sh}")
    done = autotune("study", "create", str(path))
    assert f"{path}:14: baseline.max_num_seqs: is out of range" in done.err
