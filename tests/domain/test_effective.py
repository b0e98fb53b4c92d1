"""Proofs on their way into a plan, and corrections on their way out of an attempt."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from autotune.domain.candidate import Candidate
from autotune.domain.effective import Corrected, EffectiveConfig
from autotune.domain.job import TrialOutcome
from autotune.domain.knobs import (
    SERVER,
    BooleanKind,
    Constant,
    EnvFragment,
    EnvVar,
    Flag,
    JsonPath,
    Knob,
    Landing,
    Preload,
    StackChoice,
    Switch,
)
from autotune.domain.launch_plan import place_of, render
from tests import builders


def knob(name: str, lands: Landing, role: str = SERVER) -> Knob:
    return Knob(
        name=name, about="", type=BooleanKind(), unset=True, lands=lands, role=role, proof=f"{name} is in effect"
    )


def test_proofs_go_with_the_knobs_that_are_set() -> None:
    knobs = (
        knob("a", EnvVar(name="A")),
        knob("b", EnvFragment(name="CONF", key="b")),
        knob("c", JsonPath(flag="--json", path="x.y"), role="decode"),
        knob("d", Flag(flag="--d")),
        knob("e", Switch(on="--e")),
    )
    space = builders.space(knobs=knobs, rules=(), recipes=(), baseline={})
    values = {"a": True, "b": True, "c": True, "d": False, "e": None}
    roles = render(space, Candidate(values=values), {}).roles
    assert roles[SERVER].proofs == {"env A": "a is in effect", "env CONF:b": "b is in effect"}
    assert roles["decode"].proofs == {"--json x.y": "c is in effect"}


@pytest.mark.parametrize(
    ("lands", "name"),
    [
        (EnvVar(name="A"), "env A"),
        (EnvFragment(name="A", key="b"), "env A:b"),
        (Preload(), "LD_PRELOAD"),
        (Flag(flag="--a"), "--a"),
        (Switch(on="--a", off="--no-a"), "--a --no-a"),
        (JsonPath(flag="--a", path="b.c"), "--a b.c"),
        (Constant(target="m:N"), "constant m:N"),
        (StackChoice(), "the stack"),
    ],
)
def test_every_setting_has_a_name(lands: Landing, name: str) -> None:
    assert place_of(lands) == name


def test_a_proof_has_to_be_a_regular_expression() -> None:
    with pytest.raises(ValidationError, match="proof is no regular expression"):
        Knob(name="a", about="", type=BooleanKind(), lands=EnvVar(name="A"), proof="(")


def test_an_outcome_names_its_corrections_by_role() -> None:
    change = Corrected(setting="--sizes", asked=(1, 9), got=(1, 8), line="truncated")
    config = EffectiveConfig(applied={"--a": 1, "--b": None}, corrected=(change,))
    outcome = TrialOutcome(uid="a1", measurement=builders.measurement(), effective={"decode": config})
    assert outcome.corrected == (("decode", change),)
    assert TrialOutcome.model_validate_json(outcome.model_dump_json()) == outcome
    assert str(change) == "the engine runs with --sizes = (1, 8), not (1, 9)"
    assert str(Corrected(setting="--x", got=False, line="")) == "the engine runs with --x = False, not what it was"
