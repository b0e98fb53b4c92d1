"""Launches read back: every landing place, every form of writing, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from autotune.domain.knobs import (
    EnvVar,
    Flag,
    KnobValue,
)
from autotune.domain.launch_parse import baseline_values, parse
from autotune.domain.launch_plan import RolePlan
from autotune.domain.parsed_launch import ParsedLaunch
from autotune.domain.space import (
    SearchSpace,
)
from autotune.domain.stack import StackVersions
from tests.domain.every_landing import DIGIT, FACTS, SPACE, knob


def read(*argv: str, facts: Mapping[str, Any] | None = None, space: SearchSpace = SPACE, **env: str) -> ParsedLaunch:
    return parse(space, {"server": RolePlan(env=env, argv=argv)}, facts=facts)


def values(parsed: ParsedLaunch) -> dict[str, KnobValue]:
    """Without the knob that is always there."""
    return {name: value for name, value in parsed.candidate.items() if name != "one_side"}


def rules(parsed: ParsedLaunch) -> dict[str, str]:
    return {finding.rule: finding.severity for finding in parsed.findings}


def keys(entries: Any) -> list[str]:
    return [entry.key for entry in entries]


# --- forms ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--flag=3"], {"flag": 3}),
        (["--flag", "-1"], {"flag": -1}),
        (["--flag", "1", "--flag", "2.5"], {"flag": 2.5}),
        (["--sizes", "4", "1", "2"], {"sizes": (1, 2, 4)}),
        (["--sizes=[1,2]"], {"sizes": (1, 2)}),
        (["--size", "8"], {"sizes": (8,)}),
        (["--yes"], {"yes": True}),
        (["--yes", "True"], {"yes": True}),
        (["--yes", "false"], {}),
        (["--pair"], {"pair": True}),
        (["--no-pair"], {"pair": False}),
        (["--conf", '{"outer": {"deep_key": 3}, "truth": "True"}'], {"deep": 3, "truth": True}),
        (["--conf", '{"list": [16, 2]}'], {"list": (2, 16)}),
        (["--conf.outer.deep_key", "3", "--conf.truth=false"], {"deep": 3, "truth": False}),
        (["--conf", '{"outer": {"deep_key": true}}'], {"deep": 1}),
        (["-tp", "4"], {"tensor_parallel": 4}),
        (["--tp-size", "4"], {"tensor_parallel": 4}),
        (["python3", "-u", "-m", "vllm.entrypoints.openai.api_server", "--flag", "2 "], {"flag": 2}),
        (["vllm", "serve", "/models/m", "--flag", "2"], {"flag": 2}),
    ],
)
def test_every_way_to_write_an_argument(argv: list[str], expected: dict[str, KnobValue]) -> None:
    parsed = read(*argv, facts=FACTS)
    assert values(parsed) == expected
    assert (parsed.unknown, parsed.unread) == ((), ())


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"ON": "True"}, {"on": True}),
        ({"ON": "false "}, {"on": False}),
        ({"ENV": "True"}, {"env": 1}),
        ({"WORD": "True"}, {"word": "true"}),
        ({"CONF": "a:True, b:0.5"}, {"part_a": True, "part_b": 0.5}),
        ({"LD_PRELOAD": "/opt/libtcmalloc.so.4:$LD_PRELOAD"}, {"lib": "tcmalloc"}),
        ({"ENV": ""}, {}),
    ],
)
def test_every_way_to_write_a_variable(env: dict[str, str], expected: dict[str, KnobValue]) -> None:
    parsed = parse(SPACE, {"server": RolePlan(env=env)}, facts=FACTS)
    assert values(parsed) == expected
    assert (parsed.unknown, parsed.unread) == ((), ())


def test_underscores_stand_for_dashes() -> None:
    parsed = read("--port_range=7", "--tensor_parallel_size", "4", facts=FACTS)
    assert keys(parsed.fixed) == ["--port-range"]
    assert values(parsed) == {"tensor_parallel": 4}


def test_a_repeated_and_a_shortened_flag_are_told() -> None:
    assert rules(read("--flag", "1", "--flag", "2", facts=FACTS)) == {"repeated-flag": "note"}
    assert rules(read("--siz", "1", facts=FACTS)) == {"shortened-flag": "note"}


def test_what_could_be_two_flags_is_neither() -> None:
    parsed = read("--p", "1", facts=FACTS)
    assert keys(parsed.unknown) == ["--p"]


# --- what is not a knob ---------------------------------------------------------------------


def test_what_belongs_to_the_template_the_space_or_nobody_is_fixed() -> None:
    parsed = read(
        "vllm", "serve", "/models/m", "--host", "::", "--api-key", "secret", "--port-range", "7",
        facts=FACTS, NEVER="3", PYTHONPATH="$PYTHONPATH:/x", DOUBLE="2", ENV="1",
    )  # fmt: skip
    assert sorted(keys(parsed.fixed)) == [
        "--api-key",
        "--host",
        "--port-range",
        "env DOUBLE",
        "env NEVER",
        "env PYTHONPATH",
        "model",
    ]
    assert "secret" not in parsed.model_dump_json()
    assert "not searched: never" in [entry.why for entry in parsed.fixed]
    assert parsed.findings == ()


def test_settings_that_differ_from_what_the_space_says_are_told() -> None:
    found = rules(read("--port-range", "8", facts=FACTS, ENV="2", DOUBLE="5"))
    assert found == {"fixed-differs": "warn", "derived-differs": "note"}


def test_unknown_settings_are_listed_with_their_values() -> None:
    parsed = read("--foo", "-1", "--bar", "--conf", '{"new_key": {"x": [1]}}', facts=FACTS, OTHER="torch", CONF="c:1")
    assert {entry.key: entry.value for entry in parsed.unknown} == {
        "env OTHER": "torch",
        "env CONF:c": 1,
        "--foo": -1,
        "--bar": True,
        "--conf new_key.x": (1,),
    }


def test_dead_settings_are_unread_where_the_version_does_not_read_them() -> None:
    argv = ("--gone", "1", "--conf", '{"attic": {"a": 1, "b": 2}}')
    parsed = read(*argv, facts=FACTS, CONF="old:3,a:True")
    assert sorted(keys(parsed.unread)) == ["--conf attic", "--gone", "env CONF:old"]
    before = parse(SPACE, {"server": RolePlan(argv=argv)}, StackVersions(engine="0.9"), FACTS)
    assert (keys(before.unread), keys(before.unknown)) == (["--conf attic"], ["--gone"])


def test_a_knob_of_a_later_version_is_unread() -> None:
    (entry,) = read(facts=FACTS, NEWER="3").unread
    assert (entry.key, entry.why) == ("env NEWER", "needs engine >=2, here is 1.0")
    assert values(parse(SPACE, {"server": RolePlan(env={"NEWER": "3"})}, StackVersions(engine="2.1"))) == {"newer": 3}


@pytest.mark.parametrize("content", ['{"deep_key": 3}', '{"outer": {"inner": {"deep_key": 3}}}'])
def test_a_key_at_the_wrong_level_is_unread_and_its_place_is_named(content: str) -> None:
    parsed = read("--conf", content, facts=FACTS)
    (entry,) = parsed.unread
    assert entry.mend == "it belongs to outer of --conf: write --conf outer.deep_key"
    assert rules(parsed) == {"wrong-nesting": "warn"}


def test_renamed_settings_are_read_under_their_new_name() -> None:
    parsed = read("--old_flag", "3", "--conf", '{"before": {"deep_key": 4}}', facts=FACTS)
    assert values(parsed) == {"flag": 3, "deep": 4}
    assert [(r.old, r.new) for r in parsed.renamed] == [
        ("--old-flag", "--flag"),
        ("--conf before", "--conf outer"),
    ]


def test_a_slip_of_the_unit_is_a_finding() -> None:
    assert rules(read(facts=FACTS, TIMEOUT_MS="600")) == {"unit": "warn"}
    assert rules(read(facts=FACTS, TIMEOUT_MS="3600")) == {}


def test_a_value_out_of_range_is_told_with_the_range_and_left_out() -> None:
    parsed = read("--flag", "many", facts=FACTS, ENV="12")
    assert values(parsed) == {}
    assert sorted(keys(parsed.unknown)) == ["--flag", "env ENV"]
    assert [f.message for f in parsed.findings] == [
        "env ENV=12 is outside of knob env, which takes 0..9, unset",
        "--flag: many is not a number of this kind; knob flag takes -1.0..9.0, unset",
    ]


def test_text_that_is_no_json_is_refused_by_the_engine() -> None:
    parsed = read("--conf", "{'truth': true}", facts=FACTS)
    assert rules(parsed) == {"not-json": "refuse"}
    assert parsed.is_refused


def test_what_only_the_shell_knows_is_not_read() -> None:
    parsed = read("--flag", "$N", "--conf", '{"truth": $T}', facts=FACTS)
    assert (values(parsed), keys(parsed.unknown)) == ({}, ["--flag"])
    assert rules(parsed) == {"unresolved": "warn"}


# --- rules, conditions, roles ---------------------------------------------------------------


def test_rules_that_do_not_hold_are_findings_and_nothing_is_repaired() -> None:
    parsed = read(facts=FACTS, ENV="9")
    assert values(parsed) == {"env": 9}
    assert rules(parsed) == {"small": "warn", "never-nine": "refuse"}
    assert parsed.is_refused


def test_a_knob_whose_condition_fails_has_no_effect() -> None:
    parsed = read(facts={**FACTS, "tensor_parallel": 1}, LATE="3")
    assert (values(parsed), keys(parsed.fixed)) == ({}, ["env LATE"])
    assert rules(parsed) == {"inactive": "warn"}


def test_ranks_are_guessed_from_the_launch() -> None:
    assert values(read("--tp", "2", LATE="3")) == {"late": 3}
    assert values(read("--tp", "1", LATE="3")) == {}
    assert values(read("--tp", "$TP", LATE="3")) == {"late": 3}


def test_a_knob_that_is_not_set_takes_the_baselines_value() -> None:
    required = SPACE.model_copy(
        update={"knobs": (knob("must", DIGIT, EnvVar(name="MUST"), unset=False),), "baseline": {"must": 4}, "rules": ()}
    )
    parsed = parse(required.model_copy(update={"derived": ()}), {"server": RolePlan()}, facts=FACTS)
    assert (parsed.candidate, rules(parsed)) == ({"must": 4}, {"not-set": "note"})


def test_a_baseline_unsets_what_the_launch_does_not_set() -> None:
    parsed = read("--flag", "3", facts=FACTS)
    assert baseline_values(SPACE, parsed) == {"env": None, "flag": 3, "one_side": False}


def test_roles_have_knobs_of_their_own() -> None:
    two = SPACE.model_copy(
        update={
            "knobs": (
                knob("p_seqs", DIGIT, Flag(flag="--seqs"), role="prefill"),
                knob("d_seqs", DIGIT, Flag(flag="--seqs"), role="decode"),
            ),
            "fixed": (),
            "derived": (),
            "rules": (),
        }
    )
    roles = {"prefill": RolePlan(argv=("--seqs", "1")), "decode": RolePlan(argv=("--seqs", "2"))}
    assert parse(two, roles, facts=FACTS).candidate == {"p_seqs": 1, "d_seqs": 2}
    single = parse(two, {"server": RolePlan(argv=("--seqs", "3", "--what"))}, facts=FACTS)
    assert (single.candidate, keys(single.fixed), keys(single.unknown)) == ({}, ["--seqs"], ["--what"])
    assert rules(single) == {"unknown-role": "warn"}


def test_of_a_split_deployment_the_decoder_is_the_server_of_a_space_without_roles() -> None:
    roles = {"prefill": RolePlan(argv=("--flag", "1")), "decode": RolePlan(argv=("--flag", "2"))}
    parsed = parse(SPACE, roles, facts=FACTS)
    assert values(parsed) == {"flag": 2}
    assert [(entry.role, entry.key) for entry in parsed.fixed] == [("prefill", "--flag")]
    assert values(parse(SPACE, {"prefill": RolePlan(argv=("--flag", "1"))}, facts=FACTS)) == {"flag": 1}
