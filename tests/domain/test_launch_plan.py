"""Knobs become text in one place: every landing, and nothing lost on the way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.candidate import Candidate
from autotune.domain.knobs import (
    BooleanKind,
    ChoiceKind,
    EnvFragment,
    EnvVar,
    Flag,
    IntegerKind,
    JsonPath,
    Knob,
    KnobValue,
    Preload,
    Switch,
)
from autotune.domain.launch_plan import render
from autotune.domain.space import DerivedSetting, FixedSetting, SearchSpace
from autotune.errors import InvalidSpace

number = IntegerKind(low=0, high=9)
pair = ChoiceKind(values=((1, 2),))
SPACE = SearchSpace(
    name="all-places",
    engine="e",
    about="One knob for every landing place.",
    knobs=(
        Knob(name="env", about="", type=number, unset=True, lands=EnvVar(name="ENV")),
        Knob(name="on", about="", type=BooleanKind(), unset=True, lands=EnvVar(name="ON")),
        Knob(name="part_a", about="", type=BooleanKind(), unset=True, lands=EnvFragment(name="CONF", key="a")),
        Knob(name="part_b", about="", type=number, unset=True, lands=EnvFragment(name="CONF", key="b")),
        Knob(name="lib", about="", type=ChoiceKind(values=("jemalloc",)), unset=True, lands=Preload()),
        Knob(name="flag", about="", type=number, unset=True, lands=Flag(flag="--flag")),
        Knob(name="sizes", about="", type=ChoiceKind(values=((1, 2), (4,))), unset=True, lands=Flag(flag="--sizes")),
        Knob(name="pair", about="", type=BooleanKind(), unset=True, lands=Switch(on="--pair", off="--no-pair")),
        Knob(name="deep", about="", type=number, unset=True, lands=JsonPath(flag="--conf", path="a.b")),
        Knob(
            name="list",
            about="",
            type=ChoiceKind(values=((1, 2),)),
            unset=True,
            lands=JsonPath(flag="--conf", path="c"),
        ),
    ),
    fixed=(FixedSetting(lands=Flag(flag="--port-range"), value=7),),
    derived=(
        DerivedSetting(name="double", lands=EnvVar(name="DOUBLE"), value="knobs.env * 2", when="knobs.env != null"),
    ),
    baseline={},
)


def plan_of(**values: KnobValue) -> tuple[dict[str, str], list[str], list[str]]:
    role = render(SPACE, Candidate(values=values), {}).roles["server"]
    return role.env, list(role.argv), list(role.preload)


def test_unset_leaves_no_trace() -> None:
    assert plan_of() == ({}, ["--port-range", "7"], [])


def test_every_landing_place() -> None:
    env, argv, preload = plan_of(
        env=3, on=True, part_a=True, part_b=4, lib="jemalloc", flag=0, sizes=(1, 2), pair=False, deep=5, list=(1, 2)
    )
    assert env == {"ENV": "3", "ON": "1", "DOUBLE": "6", "CONF": "a:True,b:4"}
    assert preload == ["jemalloc"]
    conf = json.dumps({"a": {"b": 5}, "c": [1, 2]}, separators=(",", ":"))
    assert argv == ["--port-range", "7", "--flag", "0", "--sizes", "1", "2", "--no-pair", "--conf", conf]


def values_of() -> st.SearchStrategy[dict[str, KnobValue]]:
    digit = st.integers(0, 9)
    return st.fixed_dictionaries(
        {},
        optional={
            "env": digit,
            "on": st.booleans(),
            "part_a": st.booleans(),
            "part_b": digit,
            "lib": st.just("jemalloc"),
            "flag": digit,
            "sizes": st.sampled_from([(1, 2), (4,)]),
            "pair": st.booleans(),
            "deep": digit,
            "list": st.just((1, 2)),
        },
    )


@given(one=values_of(), two=values_of())
@settings(max_examples=200, deadline=None)
def test_two_candidates_have_one_plan_only_when_they_are_equal(
    one: dict[str, KnobValue], two: dict[str, KnobValue]
) -> None:
    same = render(SPACE, Candidate(values=one), {}) == render(SPACE, Candidate(values=two), {})
    assert same == (Candidate(values=one) == Candidate(values=two))


@given(values=values_of())
@settings(max_examples=50, deadline=None)
def test_the_plan_does_not_depend_on_the_order_of_the_values(values: dict[str, KnobValue]) -> None:
    turned = Candidate(values=dict(reversed(values.items())))
    assert render(SPACE, turned, {}) == render(SPACE, Candidate(values=values), {})
    assert turned.fingerprint == Candidate(values=values).fingerprint


def test_two_settings_for_one_place_are_refused() -> None:
    twice = SPACE.model_copy(update={"fixed": (FixedSetting(lands=EnvVar(name="ENV"), value=1),)})
    with pytest.raises(InvalidSpace, match="claim env ENV"):
        render(twice, Candidate(values={"env": 2}), {})
