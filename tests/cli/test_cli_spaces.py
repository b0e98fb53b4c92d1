"""`autotune space show --stack`, `explain`, `lint`, `import`, `schema`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from autotune.cli.space_instance import scientific
from autotune.domain.space import SearchSpace
from tests import builders
from tests.cli.conftest import CommandLine
from tests.cli.fake_api import FakeApi

SPACES = Path(__file__).parents[1] / "search_spaces"
GOOD = str(SPACES / "good" / "whole_language.yaml")

# --- lint -----------------------------------------------------------------------------------


def test_a_good_file_has_no_problems(autotune: CommandLine) -> None:
    done = autotune("space", "lint", GOOD)
    assert (done.code, done.out) == (0, f"{GOOD}: 7 knobs, 5 rules: no problems\n")
    found = autotune("space", "lint", GOOD, "--json").json
    assert found == {"file": GOOD, "name": "whole-language", "knobs": 7, "rules": 5, "problems": []}


def test_all_problems_come_at_once_with_their_lines(autotune: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "whole_language.yaml"
    text = (
        Path(GOOD).read_text().replace("excludes: [affinity]", "excludes: [afinity]").replace("knobs.draft <=", "x <=")
    )
    path.write_text(text.replace("batch: 16,", "batch: 7,"))
    done = autotune("space", "lint", str(path))
    assert done.code == 1
    lines = done.out.splitlines()
    assert [line.split(": ")[1] for line in lines[:-1]] == [
        "knobs[4].excludes[0]",
        "rules[0].require",
        "baseline.batch",
    ]
    assert "did you mean affinity?" in lines[0]
    assert lines[-1] == f"{path} has 3 problems"
    number = text[: text.index("[afinity]")].count("\n") + 1
    assert lines[0].startswith(f"{path}:{number}: ")
    done = autotune("space", "lint", str(path), "--json")
    assert done.code == 1
    assert [p["key"] for p in done.json["problems"]] == ["knobs[4].excludes[0]", "rules[0].require", "baseline.batch"]


def test_a_file_named_unlike_its_space_is_a_problem(autotune: CommandLine, tmp_path: Path) -> None:
    shutil.copy(GOOD, tmp_path / "other.yaml")
    done = autotune("space", "lint", str(tmp_path / "other.yaml"))
    assert done.code == 1
    assert "is whole-language, but the file is named other.yaml" in done.out


def test_broken_yaml_is_a_problem_and_an_absent_file_wrong_use(autotune: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("name: [\n")
    done = autotune("space", "lint", str(path))
    assert done.code == 1
    assert "is not YAML" in done.out
    done = autotune("space", "lint", str(tmp_path / "none.yaml"))
    assert (done.code, done.out) == (2, "")
    assert "No such file" in done.err


# --- explain --------------------------------------------------------------------------------


def test_a_knob_is_explained(autotune: CommandLine) -> None:
    done = autotune("space", "explain", GOOD, "batch")
    assert done.code == 0
    words = " ".join(done.out.split())
    for part in (
        "batch: Largest batch.",
        "values 8..256 (requests)",
        "baseline 16",
        "when unset as many as fit",
        "lands in --batch",
        "tier 1: searched",
        "effect more requests at a time",
        "evidence a report",
        "moves with sizes",
        "condition of draft",
        "rule batch-covers-load (repair): knobs.batch >= facts.max_concurrency why: requests would queue",
    ):
        assert part in words
    assert "rule draft-is-short" not in words


@pytest.mark.parametrize(
    ("knob", "parts"),
    [
        ("affinity", ["lands in env SOME_AFFINITY", "excludes binding", "rule affinity-hangs (arm)"]),
        ("binding", ["exists with engine >=0.22,<0.25", "lands in --config cpu.binding", "excludes affinity"]),
        ("sizes", ["cost kernels are compiled anew", r"proof the log matches captured \d+ graphs"]),
        ("threshold", ["lands in constant engine.ops.prefetch:THRESHOLD", "tier 3: searched only when"]),
        ("release", ["limited next needs cann >=9.1; chips 910C, 950DT", "lands in the template's stack"]),
        ("draft", ["active when knobs.batch <= 64", "baseline 2", "rule sizes-with-drafts (warn)"]),
    ],
)
def test_every_side_of_a_knob_is_told(autotune: CommandLine, knob: str, parts: list[str]) -> None:
    words = " ".join(autotune("space", "explain", GOOD, knob).out.split())
    assert [part for part in parts if part not in words] == []


def test_a_knob_of_the_servers_space_is_explained_as_json(api: FakeApi, autotune: CommandLine) -> None:
    api.says("GET /spaces/tiny", builders.space().model_dump(mode="json"))
    found = autotune("space", "explain", "tiny", "max_num_seqs", "--json").json
    assert found["place"] == "--max-num-seqs"
    assert found["baseline"] == 16
    assert [rule["name"] for rule in found["rules"]] == ["batch-covers-load"]


def test_an_unknown_knob_or_space_is_refused(autotune: CommandLine) -> None:
    done = autotune("space", "explain", GOOD, "bach")
    assert done.code == 2
    assert "did you mean batch?" in done.err
    assert autotune("space", "explain", "none", "batch").code == 1
    assert autotune("space", "explain", "none.yaml", "batch").code == 2


# --- show -----------------------------------------------------------------------------------


def test_a_file_is_shown_like_a_space_of_the_server(autotune: CommandLine) -> None:
    done = autotune("space", "show", GOOD)
    assert done.code == 0
    assert "threshold  3     1..4096, unset" in done.out
    assert SearchSpace.model_validate(autotune("space", "show", GOOD, "--json").json).name == "whole-language"


def test_an_instance_says_what_it_left_out_and_how_large_it_is(autotune: CommandLine) -> None:
    done = autotune("space", "show", GOOD, "--stack", "engine=0.21,chip=910b")
    assert done.code == 0
    words = " ".join(done.out.split())
    for part in (
        "on engine 0.21, chip 910B",
        "left out (4):",
        "value release=next only on 910C, 950DT, not on 910B",
        "knob binding needs engine >=0.22,<0.25, here is 0.21",
        "knob threshold not searched by default: tier 3, include it by name",
        "size, for devices=2, tensor_parallel=2, concurrency=[1, 4, 8]:",
        "2000 random draws:",
        "refused by draft-is-short:",
    ):
        assert part in words
    found = autotune("space", "show", GOOD, "--stack", "engine=0.23", "--include", "tier3", "--json").json
    assert "threshold" in [knob["name"] for knob in found["space"]["knobs"]]
    assert found["left_out"] == []
    # batch, sizes (1 to 4 of 5), threshold, release, binding, draft; affinity is on hold
    assert found["size"]["combinations"] == 249 * 31 * 4097 * 2 * 3 * 9
    assert 0 < found["size"]["refused"] < 0.1


def test_without_a_stack_the_spaces_own_is_taken(autotune: CommandLine) -> None:
    done = autotune("space", "show", GOOD, "--include", "threshold")
    assert "on engine 0.23.0, cann 9.1.0, torch_npu 2.9.0, chip 910C" in done.out
    assert "affinity-hangs" in done.out


def test_the_size_may_be_judged_by_a_study(autotune: CommandLine, tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "name: s\nspace: whole-language\ndeployment: {template: t, model: m, devices: 4, tensor_parallel: 4}\n"
        "workload: {prompt_tokens: 8, output_tokens: 8, levels: [{concurrency: 256, requests: 256}]}\n"
        "budget: {trials: 20, wall_time_s: 60}\n"
    )
    found = autotune("space", "show", GOOD, "--study", str(study), "--json").json
    assert found["facts"]["concurrency"] == [256]
    assert found["size"]["repaired"] > 0.9


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--stack", "engin=0.23"], "unknown part engin"),
        (["--stack", "engine=newest"], "'newest' is not a version"),
        (["--stack", "engine"], "engine has no value"),
        (["--stack", "chip=910B,chip=910C"], "chip is given twice"),
        (["--include", "treshold"], "unknown knob treshold"),
        (["--include", "tier4"], "unknown knob tier4"),
    ],
)
def test_a_strange_stack_or_knob_is_refused(autotune: CommandLine, words: list[str], complaint: str) -> None:
    done = autotune("space", "show", GOOD, *words)
    assert done.code == 2
    assert complaint in done.err


def test_large_numbers_are_written_short() -> None:
    assert [scientific(n) for n in (1, 123_456, 1_234_567, 10**400)] == ["1", "123456", "1.23e6", "1.00e400"]


# --- import and schema ----------------------------------------------------------------------


def test_what_is_imported_passes_lint(autotune: CommandLine, tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps([{"max_num_seqs": 32, "port": 1}, {"max_num_seqs": 64}]))
    output = tmp_path / "my_space.yaml"
    done = autotune("space", "import", str(sweep), "--format", "vllm-bench-sweep", "-o", str(output))
    assert (done.code, done.out) == (0, "")
    assert "left out: port" in done.err
    assert autotune("space", "lint", str(output)).out == f"{output}: 1 knob, 0 rules: no problems\n"
    assert "name: my-space" in output.read_text()
    printed = autotune("space", "import", str(sweep), "--format", "vllm-bench-sweep", "--name", "my-space")
    assert printed.out == output.read_text()
    found = autotune("space", "import", str(sweep), "--format", "vllm-bench-sweep", "--engine", "x", "--json").json
    assert (found["name"], found["knobs"], found["output"]) == ("sweep", 1, None)
    assert "engine: x" in found["content"]


def test_what_can_not_be_imported_is_told(autotune: CommandLine, tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("a: [1, 2]\n")
    words = ("space", "import", str(grid), "--format", "evalscope-grid")
    done = autotune(*words, "--name", "x", "-o", str(tmp_path / "y.yaml"))
    assert done.code == 2
    assert "is x, but the file is to be named y.yaml" in done.err
    assert not (tmp_path / "y.yaml").exists()
    assert "lower-case letters" in autotune(*words, "--name", "X").err
    assert autotune("space", "import", str(grid), "--format", "optix").code == 2
    assert autotune("space", "import", str(grid), "--format", "excel").code == 2
    assert autotune("space", "import", str(tmp_path / "none"), "--format", "optix").code == 2


def test_the_schema_knows_every_good_file(autotune: CommandLine) -> None:
    schema = json.loads(autotune("space", "schema").out)
    assert autotune("space", "schema", "--json").json == schema
    assert set(schema["properties"]) == set(SearchSpace.model_fields)
