"""Bounds that failed trials teach, and candidates that respect them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.failure import Bound, Failure, FailureClass, FailureValue, Phase
from autotune.domain.knobs import ChoiceKind, EnvVar, Flag, FloatKind, IntegerKind, Kind, Knob, KnobValue
from autotune.domain.learned_bounds import LearnedBound, broken, fit, learned_bounds
from autotune.domain.space import SearchSpace
from autotune.domain.trial import StudyPhase, Trial, TrialState
from tests import builders

BUFFER = FailureValue(name="needed", value=600, unit="MB", setting="HCCL_BUFFSIZE", bound=Bound.AT_LEAST)


def trial(number: int, *told: FailureValue, **values: KnobValue) -> Trial:
    new = builders.new_trial(candidate=builders.candidate(**values))
    fields: dict[str, Any] = {name: getattr(new, name) for name in ("phase", "label", "proposal", "candidate", "plan")}
    failure = Failure(phase=Phase.WARM_UP, failure_class=FailureClass.INVALID_CONFIG, summary="too small", values=told)
    return Trial(
        study_id=1,
        number=number,
        state=TrialState.FAILED,
        failure=failure,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        **fields,
    )


def test_a_failure_that_says_what_it_needs_teaches_a_bound() -> None:
    (bound,) = learned_bounds(builders.space(), [trial(12, BUFFER, buffer_mb=256)])
    assert str(bound) == "HCCL_BUFFSIZE >= 600, learned from trial 12"
    assert (bound.knob, bound.unset_fails) == ("buffer_mb", False)


def test_the_search_gets_values_on_the_bound_and_is_told_why() -> None:
    space = builders.space()
    bounds = learned_bounds(space, [trial(12, BUFFER, buffer_mb=256)])
    fitted = fit(space, bounds, {"buffer_mb": 128, "max_num_seqs": 16})
    assert fitted is not None
    assert fitted.values["buffer_mb"] == 600
    assert fitted.repairs == ("HCCL_BUFFSIZE >= 600, learned from trial 12",)
    kept = fit(space, bounds, {"buffer_mb": 900, "max_num_seqs": 16})
    assert kept is not None
    assert kept.repairs == ()


def test_unset_is_given_up_only_when_an_unset_trial_failed() -> None:
    space = builders.space()
    values: dict[str, KnobValue] = {"buffer_mb": None, "max_num_seqs": 16}
    told_set = fit(space, learned_bounds(space, [trial(3, BUFFER, buffer_mb=256)]), values)
    told_unset = fit(space, learned_bounds(space, [trial(3, BUFFER)]), values)
    assert told_set is not None
    assert told_set.values["buffer_mb"] is None
    assert told_unset is not None
    assert told_unset.values["buffer_mb"] == 600


def test_the_strictest_bound_holds_and_names_its_trial() -> None:
    more = BUFFER.model_copy(update={"value": 900.0})
    (bound,) = learned_bounds(
        builders.space(), [trial(9, more, buffer_mb=100), trial(4, BUFFER), trial(11, BUFFER, buffer_mb=200)]
    )
    assert (bound.value, bound.trial, bound.unset_fails) == (900, 9, True)


def test_most_of_a_flag() -> None:
    space = builders.space()
    told = FailureValue(name="maximum", value=100, unit="requests", setting="--max-num-seqs", bound=Bound.AT_MOST)
    bounds = learned_bounds(space, [trial(5, told, max_num_seqs=256)])
    fitted = fit(space, bounds, {"max_num_seqs": 200})
    assert fitted is not None
    assert fitted.values["max_num_seqs"] == 100
    assert [str(b) for b in broken(bounds, {"max_num_seqs": 101})] == ["--max-num-seqs <= 100, learned from trial 5"]


@pytest.mark.parametrize(
    "told",
    [
        BUFFER.model_copy(update={"bound": None}),
        BUFFER.model_copy(update={"setting": None}),
        BUFFER.model_copy(update={"setting": "NOBODY"}),
        BUFFER.model_copy(update={"value": 100.0}),  # the trial had more than that
    ],
)
def test_what_teaches_nothing(told: FailureValue) -> None:
    assert learned_bounds(builders.space(), [trial(1, told, buffer_mb=256)]) == ()


def test_a_measured_trial_teaches_nothing() -> None:
    measured = trial(1, BUFFER, buffer_mb=256).model_copy(update={"state": TrialState.MEASURED})
    assert measured.phase is StudyPhase.SEARCH
    assert learned_bounds(builders.space(), [measured]) == ()


def test_a_bound_that_the_space_cannot_keep_refuses_the_candidate() -> None:
    space = builders.space()
    far = BUFFER.model_copy(update={"value": 9000.0})
    assert fit(space, learned_bounds(space, [trial(1, far, buffer_mb=256)]), {"buffer_mb": 64}) is None
    held = builders.space(hold={"buffer_mb": 64})
    assert fit(held, learned_bounds(held, [trial(1, BUFFER, buffer_mb=64)]), {"buffer_mb": 64}) is None


def test_the_buffer_of_expert_exchange_is_meant_where_it_is_set() -> None:
    own = Knob(
        name="exchange_mb",
        about="Buffer of the exchange alone.",
        type=IntegerKind(low=64, high=8192),
        unset=True,
        lands=EnvVar(name="DEEPEP_HCCL_BUFFSIZE"),
    )
    space = builders.space(knobs=(*builders.space().knobs, own))
    (bound,) = learned_bounds(space, [trial(2, BUFFER, exchange_mb=128)])
    assert str(bound) == "DEEPEP_HCCL_BUFFSIZE >= 600, learned from trial 2"


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(
        [
            IntegerKind(low=3, high=90, step=7),
            FloatKind(low=0.5, high=80.0),
            ChoiceKind(values=(1, 8, 40, "auto", True)),
        ]
    ),
    st.sampled_from(Bound),
    st.floats(-20, 120, allow_nan=False),
    st.data(),
)
def test_a_fitted_value_is_one_of_the_knobs_and_keeps_the_bound(
    kind: Kind, bound: Bound, value: float, data: st.DataObject
) -> None:
    knob = Knob(name="x", about="x", type=kind, unset=True, lands=Flag(flag="--x"))
    space: SearchSpace = builders.space(knobs=(*builders.space().knobs, knob))
    learned = LearnedBound(knob="x", setting="--x", bound=bound, value=value, unit="", trial=1, unset_fails=True)
    given_ = data.draw(st.none() | st.integers(0, 100).filter(kind.contains))
    fitted = fit(space, [learned], {"x": given_})
    if fitted is not None:
        assert knob.contains(fitted.values["x"])
        assert learned.keeps(fitted.values["x"])
    else:
        assert not learned.keeps(given_)
