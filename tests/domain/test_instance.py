"""A space on a stack: what exists there, what was left out and why."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from autotune.domain.instance import instantiate
from autotune.domain.knobs import ChoiceKind, EnvVar, Knob, LimitedValues, ListKind
from autotune.domain.space import DerivedSetting, FixedSetting, NamedCandidate, Rule, Severity
from autotune.domain.stack import Needs, StackVersions
from tests import builders

FACTS: dict[str, Any] = {"max_concurrency": 8, "concurrency": (1, 4, 8), "tensor_parallel": 2}
NEW = StackVersions(engine="0.23.0rc1", cann="9.1.0", chip="910C")
OLD = StackVersions(engine="0.22.0", cann="9.0.0", chip="910B")


@pytest.mark.parametrize(
    ("needs", "stack", "missing"),
    [
        (Needs(engine=">=0.23"), NEW, None),
        (Needs(engine=">=0.23"), OLD, "needs engine >=0.23, here is 0.22.0"),
        (Needs(engine=">=0.23"), StackVersions(), None),
        (Needs(chips=("910C", "950DT")), OLD, "only on 910C, 950DT, not on 910B"),
        (Needs(cann=">=8.1,<9.1"), NEW, "needs cann >=8.1,<9.1, here is 9.1.0"),
        (Needs(), OLD, None),
    ],
)
def test_what_a_stack_has(needs: Needs, stack: StackVersions, missing: str | None) -> None:
    assert needs.missing(stack) == missing


def test_versions_and_ranges_are_checked() -> None:
    with pytest.raises(ValidationError, match="is not a version range"):
        Needs(engine="about 0.23")
    with pytest.raises(ValidationError, match="is not a version such as"):
        StackVersions(engine="newest")


def test_what_is_known_here_goes_over_what_is_known_elsewhere() -> None:
    assert StackVersions(cann="9.0.0").over(NEW) == NEW.model_copy(update={"cann": "9.0.0"})


def knob(name: str, **changes: Any) -> Knob:
    fields: dict[str, Any] = {
        "name": name,
        "about": "",
        "type": ChoiceKind(values=("a", "b")),
        "unset": True,
        "lands": EnvVar(name=name.upper()),
    }
    return Knob(**{**fields, **changes})


def names(stack: StackVersions, include: tuple[str, ...] = (), **changes: Any) -> set[str]:
    space = builders.space(knobs=(*builders.space().knobs, *changes.pop("knobs")), **changes)
    return {k.name for k in instantiate(space, stack, include).space.knobs} - set(builders.space().by_name)


def test_tiers_one_and_two_are_searched_three_by_name_four_never() -> None:
    knobs = [knob(f"t{tier}", tier=tier) for tier in (1, 2, 3, 4)] + [knob("other", tier=3)]
    assert names(NEW, knobs=knobs) == {"t1", "t2"}
    assert names(NEW, ("t3",), knobs=knobs) == {"t1", "t2", "t3"}
    assert names(NEW, ("tier3",), knobs=knobs) == {"t1", "t2", "t3", "other"}


def test_everything_left_out_has_its_reason_and_rules_still_see_the_knob_as_unset() -> None:
    rule = Rule(name="r", severity=Severity.REFUSE, require="knobs.fresh == null", why="w", mend="m")
    space = builders.space(
        knobs=(
            *builders.space().knobs,
            knob("fresh", needs=Needs(engine=">=0.23")),
            knob("mode", limited=(LimitedValues(values=("b",), needs=Needs(chips=("910C",))),)),
        ),
        rules=(rule, rule.model_copy(update={"name": "s", "needs": Needs(cann=">=9.1")})),
        fixed=(FixedSetting(lands=EnvVar(name="F"), value=1, about="f", needs=Needs(engine=">=0.23")),),
        derived=(
            DerivedSetting(name="d", lands=EnvVar(name="D"), value="1", needs=Needs(engine=">=0.23")),
            DerivedSetting(name="e", lands=EnvVar(name="E"), value="2"),
        ),
        recipes=(
            NamedCandidate(name="new", values={"fresh": "a"}),
            NamedCandidate(name="both", values={"mode": "a", "fresh": None}),
            NamedCandidate(name="b", values={"mode": "b"}),
        ),
    )
    instance = instantiate(space, OLD)
    assert {(x.what, x.name) for x in instance.left_out} == {
        ("knob", "fresh"),
        ("value", "mode=b"),
        ("rule", "s"),
        ("fixed setting", "f"),
        ("derived setting", "d"),
        ("recipe", "new"),
        ("recipe", "b"),
    }
    assert instance.space.by_name["mode"].type == ChoiceKind(values=("a",))
    assert instance.space.absent == ("fresh",)
    assert [r.name for r in instance.space.recipes] == ["both"]
    settled = instance.space.settle(instance.space.complete({}), FACTS)
    assert "fresh" not in settled.candidate.values
    assert instantiate(space, NEW).left_out == ()


def test_an_instance_is_stored_and_read_like_any_space() -> None:
    space = builders.space(knobs=(*builders.space().knobs, knob("t3", tier=3)))
    instance = instantiate(space, NEW).space
    assert type(instance).model_validate_json(instance.model_dump_json()) == instance


def test_an_arm_warns_and_shortens_the_patience() -> None:
    arm = Rule(
        name="may-hang",
        severity=Severity.ARM,
        require="knobs.expansion_mode != 'AIV'",
        why="hangs were reported",
        mend="another mode",
        stall_limit_s=300,
    )
    space = builders.space(rules=(arm,), recipes=())
    settled = space.settle(space.complete({"expansion_mode": "AIV"}), FACTS)
    assert settled.stall_limit_s == 300
    assert settled.warnings == ("may-hang: hangs were reported",)
    assert space.settle(space.complete({}), FACTS).stall_limit_s is None


def test_each_severity_takes_what_belongs_to_it() -> None:
    fields: dict[str, Any] = {"name": "r", "require": "1 == 1", "why": "w", "mend": "m"}
    with pytest.raises(ValidationError, match="severity arm, and only such a rule, needs `stall_limit_s`"):
        Rule(severity=Severity.ARM, **fields)
    with pytest.raises(ValidationError, match="severity derive, and only such a rule, needs `derived`"):
        Rule(severity=Severity.WARN, derived="x", **fields)
    with pytest.raises(ValidationError, match="rule r names an unknown derived setting x"):
        builders.space(rules=(Rule(severity=Severity.DERIVE, derived="x", **fields),))


def test_exclusive_knobs_are_not_set_together() -> None:
    space = builders.space(knobs=(*builders.space().knobs, knob("one", excludes=("two",)), knob("two")), recipes=())
    settled = space.settle(space.complete({"one": "a", "two": "b"}), FACTS)
    assert settled.candidate.values["one"] == "a"
    assert "two" not in settled.candidate.values
    assert settled.repairs == ("one-excludes-two",)
    with pytest.raises(ValidationError, match="knob one excludes an unknown knob three"):
        builders.space(knobs=(*builders.space().knobs, knob("one", excludes=("three",))))


def test_a_list_holds_some_items_in_their_order() -> None:
    kind = ListKind(items=(1, 2, 4, 8), min_length=1, max_length=3)
    assert kind.contains((1, 4))
    assert kind.contains((2, 4, 8))
    for value in ((4, 1), (1, 1), (), (1, 2, 4, 8), (3,), (True,), 1):
        assert not kind.contains(value)
    assert kind.describe() == "1 to 3 of 1, 2, 4, 8"
