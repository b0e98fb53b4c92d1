"""Study files: every mistake is told at once, with file, line, key and what would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.documents import file_text, read_study
from autotune.domain.objective import ObjectiveMetric
from autotune.domain.presets import PRESETS
from autotune.domain.study import StudySpec
from autotune.domain.workload import Arrivals
from autotune.errors import InvalidRequest, InvalidStudy, Problem

DEMOS = Path(__file__).parents[2] / "deploy" / "demo"

GOOD = """\
name: report-a
space: vllm-ascend-910c
deployment:
  template: simulated-910c
  model: Qwen3.5-35B-A3B
  devices: 2
  tensor_parallel: 2
workload:
  prompt_tokens: 64
  output_tokens: 48
  levels:
    - {concurrency: 1, requests: 4}
    - {concurrency: 8, requests: 16}
objective:
  metric: tpot_ms
  weights: {c1: 1, c8: 2}
sla:
  - ttft_p99_ms <= 400
  - error_rate == 0
budget:
  trials: 34
  wall_time_s: 900
baseline: {max_num_seqs: 32}
hold: {cudagraph_mode: null}
"""


def problems(text: str) -> list[Problem]:
    with pytest.raises(InvalidStudy) as caught:
        read_study(text, "study.yaml")
    found = list(caught.value.problems)
    assert all(p.file == "study.yaml" for p in found)
    count = len(found)
    assert caught.value.message in (f"study.yaml has {count} problem{'s' * (count > 1)}", "study.yaml can't be read")
    return found


def the_problem(old: str, new: str) -> Problem:
    """The one problem of the good study with one piece of text replaced."""
    assert GOOD.count(old) == 1
    (problem,) = problems(GOOD.replace(old, new))
    return problem


def line_of(text: str) -> int:
    return GOOD[: GOOD.index(text)].count("\n") + 1


def test_a_good_study_is_read() -> None:
    spec = read_study(GOOD, "study.yaml")
    assert isinstance(spec, StudySpec)
    assert spec.workload.concurrencies == (1, 8)
    assert [str(limit) for limit in spec.sla] == ["ttft_p99_ms <= 400", "error_rate == 0"]
    assert spec.baseline == {"max_num_seqs": 32}
    assert spec.hold == {"cudagraph_mode": None}


@pytest.mark.parametrize("path", sorted(DEMOS.glob("*.yaml")), ids=lambda p: str(p.name))
def test_the_demo_studies_are_right(path: Path) -> None:
    read_study(path.read_text(encoding="utf-8"), str(path))


def test_an_unknown_key_lists_the_known_ones_and_guesses_the_meant_one() -> None:
    problem = the_problem("  wall_time_s: 900", "  wall_time_s: 900\n  wall_time: 900")
    assert (problem.key, problem.line) == ("budget.wall_time", line_of("wall_time_s") + 1)
    assert problem.message == "unknown key"
    assert problem.allowed == ("trials", "wall_time_s")
    assert problem.mend == "did you mean wall_time_s?"
    problem = the_problem("budget:", "zzz: 1\nbudget:")
    assert (problem.key, problem.line) == ("zzz", line_of("budget:"))
    assert "confirmation" in problem.allowed
    assert problem.mend == "remove it"


def test_a_missing_key_is_told_where_it_belongs() -> None:
    problem = the_problem("  model: Qwen3.5-35B-A3B\n", "")
    assert (problem.key, problem.line, problem.message) == ("deployment.model", line_of("deployment:"), "is missing")


@pytest.mark.parametrize(
    ("old", "new", "key", "words", "allowed"),
    [
        ("prompt_tokens: 64", "prompt_tokens: many", "workload.prompt_tokens", "whole number, not 'many'", True),
        ("prompt_tokens: 64", "prompt_tokens: 6.5", "workload.prompt_tokens", "must be a whole number, not 6.5", True),
        ("prompt_tokens: 64", "prompt_tokens: yes", "workload.prompt_tokens", "not 'yes'", True),
        ("prompt_tokens: 64", "prompt_tokens: true", "workload.prompt_tokens", "not true", True),
        ("prompt_tokens: 64", "prompt_tokens:", "workload.prompt_tokens", "not nothing", True),
        ("prompt_tokens: 64", "prompt_tokens: [64]", "workload.prompt_tokens", "not a list", True),
        ("prompt_tokens: 64", "prompt_tokens: 0", "workload.prompt_tokens", "is 0 and must be at least 1", True),
        ("  trials: 34", "  trials: 0", "budget.trials", "is 0 and must be at least 1", True),
        ("  trials: 34", "  trials: 9999999", "budget.trials", "must be at most 100000", True),
        ("  wall_time_s: 900", "  wall_time_s: 0", "budget.wall_time_s", "is 0 and must be above 0", True),
        ("  wall_time_s: 900", "  wall_time_s: soon", "budget.wall_time_s", "must be a number, not 'soon'", True),
        ("name: report-a", "name: report a", "name", "is not of the right form", True),
        ("metric: tpot_ms", "metric: tpot", "objective.metric", "'tpot' is not known here", True),
        ("tensor_parallel: 2", "tensor_parallel: 4", "deployment.tensor_parallel", "needs as many devices", False),
        ("{c1: 1, c8: 2}", "{c1: 1, c4: 2}", "objective.weights.c4", "unknown level c4", True),
        ("{c1: 1, c8: 2}", "{c1: -1}", "objective.weights", "weights must not be negative", False),
        ("ttft_p99_ms <= 400", "ttft_p98_ms <= 400", "sla[0]", "unknown metric ttft_p98_ms", True),
        ("ttft_p99_ms <= 400", "ttft_p99_ms <= 400 at c4", "sla[0]", "unknown level c4", True),
        ("error_rate == 0", "error_rate = 0", "sla[1]", "is not of the right form", True),
        ("error_rate == 0", "error_rate == 1.2.3", "sla[1]", "is not a number", False),
        ("error_rate == 0", "{metric: nonsense, op: '<=', bound: 1}", "sla[1].metric", "unknown metric nonsense", True),
        ("requests: 16", "requests: 16, rate_per_s: 0", "workload.levels[1].rate_per_s", "at least 0.001", True),
        ("requests: 16", "requests: 16, rate_per_s: x", "workload.levels[1].rate_per_s", "must be a number", True),
        ("requests: 16", "requests: 16, arrivals: constant", "workload.levels[1].arrivals", "no rate_per_s", False),
        ("8, requests: 16", "8, requests: 0", "workload.levels[1].requests", "is 0", True),
        ("{max_num_seqs: 32}", "{max_num_seqs: {a: 1}}", "baseline.max_num_seqs", "a mapping does not fit here", True),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_key_line_and_what_would_do(
    old: str, new: str, key: str, words: str, allowed: bool
) -> None:
    problem = the_problem(old, new)
    assert problem.key == key
    assert words in problem.message
    assert problem.line == line_of(old)
    assert bool(problem.allowed) == allowed


def test_open_loops_and_a_shared_prefix() -> None:
    text = GOOD.replace("requests: 16}", "requests: 16, rate_per_s: 2}").replace("c8: 2", "c8r2: 2")
    text = text.replace("prompt_tokens: 64", "prompt_tokens: 64\n  shared_prefix_tokens: 48")
    spec = read_study(text.replace("error_rate == 0", "error_rate == 0 at c8r2"))
    assert [level.name for level in spec.workload.levels] == ["c1", "c8r2"]
    assert spec.workload.shared_prefix_tokens == 48
    assert read_study(spec.model_dump_json()) == spec


def test_a_level_with_a_rate_has_another_name() -> None:
    open_loop = GOOD.replace("requests: 16}", "requests: 16, rate_per_s: 2}")
    (problem,) = problems(open_loop)
    assert (problem.key, problem.allowed) == ("objective.weights.c8", ("c1", "c8r2"))
    (problem,) = problems(
        open_loop.replace("c8: 2", "c8r2: 2").replace("rate_per_s: 2", "rate_per_s: 2, arrivals: odd")
    )
    assert (problem.key, problem.allowed) == ("workload.levels[1].arrivals", tuple(Arrivals))


def test_a_prefix_that_leaves_nothing_says_what_to_do() -> None:
    problem = the_problem("prompt_tokens: 64", "prompt_tokens: 64\n  shared_prefix_tokens: 64")
    assert problem.key == "workload.shared_prefix_tokens"
    assert problem.message == "64 is not below prompt_tokens, 64"
    assert problem.mend == "lower it, or raise prompt_tokens: each request needs tokens of its own"


def test_a_preset_has_its_levels() -> None:
    start, end = GOOD.index("workload:"), GOOD.index("objective:")
    text = GOOD[:start] + "workload: {preset: smoke}\n" + GOOD[end:]
    (problem,) = [one for one in problems(text) if one.key.startswith("objective.weights.c8")]
    assert problem.allowed == ("c1",)
    (unknown,) = problems(text.replace("smoke", "smokey"))
    assert (unknown.key, unknown.message) == ("workload", "preset: 'smokey' is unknown")
    assert unknown.allowed == tuple(PRESETS)


def test_a_level_that_is_given_twice_says_what_to_do() -> None:
    (problem,) = problems(
        GOOD.replace("concurrency: 8", "concurrency: 1").replace("c8: 2", "c1: 2").replace("c1: 1, ", "")
    )
    assert problem.key == "workload.levels"
    assert problem.message.endswith("may occur once at a rate, got c1, c1")
    assert problem.mend == "remove a level, or give it another concurrency or rate_per_s"


def test_choices_and_ranges_are_listed() -> None:
    assert the_problem("metric: tpot_ms", "metric: tpot").allowed == tuple(ObjectiveMetric)
    assert the_problem("metric: tpot_ms", "metric: tpot").mend == "did you mean tpot_ms?"
    assert the_problem("prompt_tokens: 64", "prompt_tokens: 0").allowed == ("1..1000000",)
    assert the_problem("wall_time_s: 900", "wall_time_s: 0").allowed == ("above 0 and at most 2592000",)
    assert the_problem("{c1: 1, c8: 2}", "{c4: 2}").allowed == ("c1", "c8")
    metric = the_problem("ttft_p99_ms <= 400", "ttft_p98_ms <= 400")
    assert "tpot_p50_ms" in metric.allowed
    assert metric.mend == "did you mean ttft_p99_ms?"
    assert the_problem("error_rate == 0", "error_rate 0").allowed == ("metric <= number", "metric <= number at c8")


def test_a_budget_that_is_too_small_says_how_much_is_needed() -> None:
    problem = the_problem("  trials: 34", "  trials: 15")
    assert (problem.key, problem.line) == ("budget.trials", line_of("trials: 34"))
    assert problem.message.startswith("15 is less than the 16 launches")
    assert problem.allowed == ("at least 16",)
    assert "confirmation.rounds" in problem.mend


def test_a_key_that_is_given_twice_is_told_beside_the_other_problems() -> None:
    found = problems(GOOD.replace("seed", "seed") + "name: again\nseed: -1\n")
    assert [(p.key, p.line) for p in found] == [("name", 25), ("seed", 26)]
    assert found[0].message == "is given twice, on lines 1 and 25"


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    text = (
        GOOD.replace("prompt_tokens: 64", "prompt_tokens: many")
        .replace("{c1: 1, c8: 2}", "{c1: 1, c4: 2, c16: 1}")
        .replace("error_rate == 0", "errors == 0\n  - tpot_ms <= 12 at c64")
        .replace("trials: 34", "trials: 3")
        .replace("wall_time_s", "walltime_s")
    )
    found = problems(text)
    assert [p.key for p in found] == [
        "workload.prompt_tokens",
        "objective.weights.c16",
        "objective.weights.c4",
        "sla[1]",
        "sla[2]",
        "budget.wall_time_s",
        "budget.trials",
        "budget.walltime_s",
    ]
    assert [p.line for p in found] == sorted(p.line or 0 for p in found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("- a\n- b\n", "must be a mapping of keys to values, not a list"),
        ("just text", "must be a mapping of keys to values, not 'just text'"),
        ("a: 1\n\tb: 2\n", "a tab stands where YAML wants spaces"),
    ],
)
def test_what_is_no_study_at_all_is_told(text: str, words: str) -> None:
    (problem,) = problems(text)
    assert words in problem.message
    assert problem.key in ("file", "yaml")


def test_parts_of_the_wrong_type_do_not_break_the_checks_across_parts() -> None:
    text = (
        "name: a\nspace: b\ndeployment: 1\nworkload: {levels: 3}\nobjective: {weights: [1]}\nsla: {a: b}\nbudget: x\n"
    )
    keys = {p.key for p in problems(text)}
    assert {"deployment", "workload.levels", "objective.weights", "sla", "budget"} <= keys


def test_a_file_that_can_not_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        file_text(tmp_path / "none.yaml")
    with pytest.raises(InvalidRequest, match="Is a directory"):
        file_text(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe4\n")
    with pytest.raises(InvalidRequest) as caught:
        file_text(tmp_path / "latin.yaml")
    assert caught.value.problems[0].line == 2
    (tmp_path / "big.yaml").write_bytes(b" " * 1_000_001)
    with pytest.raises(InvalidRequest, match="larger than"):
        file_text(tmp_path / "big.yaml")
