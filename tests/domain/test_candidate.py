"""A candidate is what is launched: equal launches are equal, and unequal ones are not."""

from __future__ import annotations

import json
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.domain.candidate import Candidate
from autotune.domain.knobs import KnobValue

QUICK = settings(deadline=None, derandomize=True)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
SET = st.one_of(SCALARS, st.lists(SCALARS, max_size=3).map(tuple))
VALUES = st.dictionaries(NAMES, st.one_of(st.none(), SET), max_size=6)


@QUICK
@given(VALUES, st.randoms(use_true_random=False))
def test_order_and_unset_knobs_do_not_matter(values: dict[str, KnobValue], dice: random.Random) -> None:
    items = [(name, value) for name, value in values.items() if value is not None]
    dice.shuffle(items)
    one, other = Candidate(values=values), Candidate(values=dict(items))
    assert one == other
    assert one.fingerprint == other.fingerprint
    assert len({one, other}) == 1


@QUICK
@given(VALUES)
def test_the_fingerprint_survives_json_and_pickle(values: dict[str, KnobValue]) -> None:
    made = Candidate(values=values)
    for again in (
        Candidate.model_validate_json(made.model_dump_json()),
        Candidate.model_validate(json.loads(json.dumps(made.model_dump(mode="json")))),
        pickle.loads(pickle.dumps(made)),
    ):
        assert again == made
        assert again.fingerprint == made.fingerprint


@QUICK
@given(VALUES, VALUES)
def test_equal_means_no_difference_and_one_fingerprint(a: dict[str, KnobValue], b: dict[str, KnobValue]) -> None:
    one, other = Candidate(values=a), Candidate(values=b)
    assert (one == other) == (one.fingerprint == other.fingerprint) == (one.difference(other) == {})


@QUICK
@given(VALUES, NAMES, SET)
def test_setting_a_knob_makes_another_candidate(values: dict[str, KnobValue], name: str, value: KnobValue) -> None:
    without = Candidate(values={n: v for n, v in values.items() if n != name})
    assert Candidate(values={**without.values, name: value}).fingerprint != without.fingerprint


@QUICK
@given(VALUES, VALUES)
def test_a_difference_turns_one_candidate_into_the_other(a: dict[str, KnobValue], b: dict[str, KnobValue]) -> None:
    one, other = Candidate(values=a), Candidate(values=b)
    change = one.difference(other)
    assert Candidate(values={**one.values, **{name: theirs for name, (_, theirs) in change.items()}}) == other
    assert {name: (theirs, mine) for name, (mine, theirs) in change.items()} == other.difference(one)


@pytest.mark.parametrize(("a", "b"), [(True, 1), (1, 1.0), (0, False), ("1", 1), ((1,), 1), ((), "")])
def test_values_that_are_written_differently_are_different_launches(a: KnobValue, b: KnobValue) -> None:
    one, other = Candidate(values={"knob": a}), Candidate(values={"knob": b})
    assert one != other
    assert one.difference(other) == {"knob": (a, b)}


def test_the_fingerprint_is_the_same_in_every_release() -> None:
    """It is stored: a change would make old trials strangers."""
    made = Candidate(values={"max_num_seqs": 16, "mode": "AIV", "sizes": (1, 2), "ratio": 0.5, "on": True})
    assert made.fingerprint == "5293626b0be16fe1"


@pytest.mark.parametrize("value", [float("inf"), float("nan"), {"a": 1}, (("nested",),), b"bytes"])
def test_what_no_command_line_can_carry_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        Candidate.model_validate({"values": {"knob": value}})
