"""Search spaces: what fits, what is repaired, what is refused, and why."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from autotune.domain.knobs import BooleanKind, ChoiceKind, EnvVar, FloatKind, IntegerKind, Knob
from autotune.domain.space import Rule, Severity
from autotune.errors import InvalidCandidate
from tests import builders

FACTS: dict[str, Any] = {"max_concurrency": 8, "concurrency": (1, 4, 8), "tensor_parallel": 2}


def test_unknown_knobs_and_values_out_of_range_are_reported_together() -> None:
    with pytest.raises(InvalidCandidate) as caught:
        builders.space().settle({"max_num_seqs": 7, "expansion_mode": "aiv", "speed": 9}, FACTS)
    texts = [str(p) for p in caught.value.problems]
    assert len(texts) == 3
    assert "max_num_seqs: 7 is not a value of this knob (allowed: 8..256)" in texts
    assert any("AIV, AI_CPU, unset" in t for t in texts)
    assert any(t.startswith("speed: unknown knob (allowed: buffer_mb") for t in texts)


def test_a_knob_that_may_not_be_unset_needs_a_value() -> None:
    with pytest.raises(InvalidCandidate) as caught:
        builders.space().settle({}, FACTS)
    assert caught.value.problems[0].key == "max_num_seqs"


def test_an_inactive_knob_is_unset() -> None:
    knobs = (
        *builders.space().knobs[:3],
        builders.space().knobs[3].model_copy(update={"when": "knobs.buffer_mb != null"}),
    )
    space = builders.space(knobs=knobs, recipes=())
    settled = space.settle({"max_num_seqs": 16, "draft_length": 4}, FACTS)
    assert "draft_length" not in settled.candidate.values
    kept = space.settle({"max_num_seqs": 16, "draft_length": 4, "buffer_mb": 100}, FACTS)
    assert kept.candidate.values["draft_length"] == 4


def test_rules_repair_refuse_and_warn() -> None:
    repair = Rule(
        name="small-batch-no-draft",
        severity=Severity.REPAIR,
        require="knobs.max_num_seqs >= 16 || knobs.draft_length == null",
        why="drafts need room",
        mend="a batch of 16",
        change={"max_num_seqs": "16"},
    )
    refuse = Rule(
        name="no-huge-buffer",
        severity=Severity.REFUSE,
        require="knobs.buffer_mb == null || knobs.buffer_mb < 4000",
        why="the engine refuses it",
        mend="lower buffer_mb",
    )
    space = builders.space(rules=(*builders.space().rules, repair, refuse))
    settled = space.settle({"max_num_seqs": 8, "draft_length": 2}, FACTS)
    assert settled.candidate.values["max_num_seqs"] == 16
    assert settled.repairs == ("small-batch-no-draft",)
    with pytest.raises(InvalidCandidate) as caught:
        space.settle({"max_num_seqs": 8, "buffer_mb": 4001}, FACTS)
    assert str(caught.value.problems[0]) == "no-huge-buffer: the engine refuses it; lower buffer_mb"
    assert space.settle({"max_num_seqs": 8}, {**FACTS, "max_concurrency": 9}).warnings


def test_rules_that_undo_each_other_are_noticed() -> None:
    def rule(name: str, want: int) -> Rule:
        return Rule(
            name=name,
            severity=Severity.REPAIR,
            require=f"knobs.max_num_seqs == {want}",
            why="w",
            mend="m",
            change={"max_num_seqs": str(want)},
        )

    space = builders.space(rules=(rule("eight", 8), rule("nine", 9)), recipes=())
    with pytest.raises(InvalidCandidate, match="do not come to rest"):
        space.settle({"max_num_seqs": 10}, FACTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"baseline": {"max_num_seqs": 1}}, "baseline: max_num_seqs"),
        ({"knobs": builders.space().knobs + builders.space().knobs[:1]}, "defined twice: expansion_mode"),
        ({"baseline": {"max_num_seqs": 16, "nope": 1}}, "baseline: nope: unknown knob"),
    ],
)
def test_a_space_that_does_not_hang_together_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        builders.space(**change)


def test_an_expression_over_unknown_names_is_refused_when_the_space_is_made() -> None:
    knob = Knob(name="x", about="", type=BooleanKind(), unset=True, lands=EnvVar(name="X"), when="os.environ")
    with pytest.raises(ValidationError, match="knob x, when: unknown name os"):
        builders.space(knobs=(*builders.space().knobs, knob))


def test_held_knobs_keep_their_value() -> None:
    space = builders.space(hold={"expansion_mode": "AIV"})
    assert space.complete({"expansion_mode": "AI_CPU"})["expansion_mode"] == "AIV"
    assert "expansion_mode" not in {k.name for k in space.free_knobs()}


def test_kinds_know_their_values() -> None:
    assert ChoiceKind(values=(1, "a")).contains(1)
    assert not ChoiceKind(values=(1, "a")).contains(True)
    assert IntegerKind(low=8, high=64, step=8).contains(16)
    assert not IntegerKind(low=8, high=64, step=8).contains(17)
    assert not IntegerKind(low=0, high=1).contains(True)
    assert FloatKind(low=0.1, high=1).contains(1)
    assert not FloatKind(low=0.1, high=1).contains(float("nan"))
    with pytest.raises(ValidationError):
        IntegerKind(low=2, high=1)
    with pytest.raises(ValidationError):
        FloatKind(low=0.0, high=1.0, log=True)
