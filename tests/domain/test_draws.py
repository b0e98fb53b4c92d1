"""Random raw values, and what they say of a space's size."""

from __future__ import annotations

from random import Random

import pytest

from autotune.domain.draws import FLOAT_STEPS, choices, draw, draw_of
from autotune.domain.knobs import (
    BooleanKind,
    ChoiceKind,
    EnvVar,
    FloatKind,
    IntegerKind,
    Kind,
    Knob,
    KnobValue,
    ListKind,
)
from autotune.domain.space import Rule, SearchSpace, Severity
from autotune.domain.space_size import estimate
from tests import builders

FACTS = {"max_concurrency": 8}
KINDS: list[tuple[Kind, int]] = [
    (BooleanKind(), 2),
    (ChoiceKind(values=("a", 1, True, (1, 2))), 4),
    (IntegerKind(low=8, high=40, step=16), 3),
    (IntegerKind(low=1, high=5, log=True), 5),
    (IntegerKind(low=2, high=20, step=6, log=True), 4),
    (FloatKind(low=0.5, high=0.95), FLOAT_STEPS),
    (FloatKind(low=0.001, high=1, log=True), FLOAT_STEPS),
    (ListKind(items=(1, 2, 4, 8), min_length=1, max_length=2), 4 + 6),
    (ListKind(items=(1, 2), min_length=0), 4),
]


def _knob(name: str, kind: Kind, **changes: object) -> Knob:
    return Knob.model_validate(
        {"name": name, "about": "x", "type": kind, "lands": EnvVar(name=name.upper()), **changes}
    )


@pytest.mark.parametrize(("kind", "count"), KINDS, ids=lambda v: getattr(v, "kind", str(v)))
def test_draws_are_values_of_the_kind_and_reach_all_of_them(kind: Kind, count: int) -> None:
    rng = Random(1)
    drawn = [draw_of(kind, rng) for _ in range(400)]
    assert all(kind.contains(value) for value in drawn)
    assert choices(_knob("k", kind)) == count
    assert choices(_knob("k", kind, unset=True)) == count + 1
    if count < FLOAT_STEPS:
        assert len({repr(value) for value in drawn}) == count


def test_a_log_scale_makes_ratios_even() -> None:
    rng = Random(2)
    drawn = [draw_of(IntegerKind(low=1, high=1023, log=True), rng) for _ in range(1000)]
    below = sum(1 for value in drawn if isinstance(value, int) and value < 32)
    assert 400 < below < 600


def test_unset_comes_half_of_the_time_or_as_one_value_among_others() -> None:
    space = builders.space()
    rng = Random(3)
    halves = [draw(space, FACTS, rng)["buffer_mb"] is None for _ in range(400)]
    assert 150 < sum(halves) < 250
    rare = [draw(space, FACTS, rng, unset=None)["buffer_mb"] is None for _ in range(400)]
    assert sum(rare) < 10


def test_the_same_state_gives_the_same_values() -> None:
    space = builders.space()
    assert draw(space, FACTS, Random(4)) == draw(space, FACTS, Random(4))


def _with_condition(**changes: object) -> SearchSpace:
    on = _knob("on", BooleanKind())
    depth = _knob("depth", IntegerKind(low=1, high=10), when="knobs.on == true", unset=True)
    fields = {"knobs": (on, depth), "baseline": {"on": False}, "recipes": (), "rules": (), **changes}
    return builders.space(**fields)


def test_conditions_are_kept_or_passed_over() -> None:
    space = _with_condition()
    rng = Random(5)
    drawn = [draw(space, FACTS, rng) for _ in range(50)]
    assert {("depth" in values) == values["on"] for values in drawn} == {True}
    assert all("depth" in draw(space, None, rng) for _ in range(20))


def test_what_is_held_stays() -> None:
    space = builders.space(hold={"buffer_mb": 128})
    drawn: list[dict[str, KnobValue]] = [draw(space, FACTS, Random(seed)) for seed in range(20)]
    assert {values["buffer_mb"] for values in drawn} == {128}
    assert len({values["max_num_seqs"] for values in drawn}) > 1


# --- size -----------------------------------------------------------------------------------


def test_the_size_counts_launches_not_values() -> None:
    """Off: one launch; on: eleven (unset, 1..10). As raw values there are 22."""
    size = estimate(_with_condition(), FACTS)
    assert size.combinations == 22
    assert size.launchable == pytest.approx(12, rel=0.15)
    assert (size.refused, size.repaired, size.warned) == (0, 0, 0)
    assert estimate(_with_condition(), FACTS) == size


def _rule(severity: Severity, require: str, **changes: object) -> Rule:
    fields = {"name": f"is-{severity}", "severity": severity, "require": require, "why": "w", "mend": "m", **changes}
    return Rule.model_validate(fields)


def test_shares_are_told_by_rule() -> None:
    rules = (
        _rule(Severity.REFUSE, "!(knobs.on && knobs.depth != null && knobs.depth > 5)"),
        _rule(Severity.WARN, "knobs.on"),
        _rule(Severity.REPAIR, "knobs.depth == null || knobs.depth != 1", change={"depth": "2"}),
    )
    size = estimate(_with_condition(rules=rules), FACTS)
    assert size.refused == pytest.approx(1 / 8, abs=0.04)
    assert size.warned == pytest.approx(1 / 2, abs=0.06)
    assert size.repaired == pytest.approx(1 / 40, abs=0.02)
    assert size.refused_by == {"is-refuse": round(size.refused * size.draws)}
    assert size.repaired_by == {"is-repair": round(size.repaired * size.draws)}
    assert size.launchable == pytest.approx(6, rel=0.25), "off, unset, 2, 3, 4, 5"


def test_a_space_that_is_refused_whole_has_no_launch() -> None:
    size = estimate(_with_condition(rules=(_rule(Severity.REFUSE, "false"),)), FACTS, draws=50)
    assert size.refused == 1
    assert size.launchable is None


def test_a_fact_that_is_not_given_leaves_draws_unjudged() -> None:
    size = estimate(_with_condition(rules=(_rule(Severity.WARN, "facts.hidden_size > 1"),)), FACTS, draws=20)
    assert size.unjudged == 20
    assert "hidden_size" in size.unjudged_why
