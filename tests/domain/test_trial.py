"""The state machine of a trial, checked over all its ways rather than line by line."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.trial import Trial, TrialState, may_become
from tests.builders import measurement, new_trial, verdict

QUICK = settings(deadline=None, derandomize=True)
WALKS = st.lists(st.sampled_from(TrialState), max_size=20)
UNFINISHED = [state for state in TrialState if not state.is_finished]


def walk(wanted: list[TrialState]) -> list[TrialState]:
    """The states a trial goes through when only allowed wishes are granted."""
    states = [TrialState.WAITING]
    for state in wanted:
        if may_become(states[-1], state):
            states.append(state)
    return states


def trial(**changes: object) -> Trial:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    fields = {**dict(new_trial()), "study_id": 1, "number": 0, "state": TrialState.WAITING, "created_at": now}
    return Trial.model_validate({**fields, **changes})


@pytest.mark.parametrize("old", list(TrialState))
def test_a_final_state_is_one_that_nothing_follows(old: TrialState) -> None:
    assert old.is_finished == (not any(may_become(old, new) for new in TrialState))


@pytest.mark.parametrize("old", UNFINISHED)
def test_what_is_not_finished_can_be_cancelled(old: TrialState) -> None:
    assert may_become(old, TrialState.CANCELLED)


def test_no_state_follows_itself() -> None:
    assert not any(may_become(state, state) for state in TrialState)


def test_a_measurement_comes_from_running_alone() -> None:
    assert [old for old in TrialState if may_become(old, TrialState.MEASURED)] == [TrialState.RUNNING]


def test_a_lost_attempt_is_the_only_way_back() -> None:
    assert [old for old in TrialState if may_become(old, TrialState.WAITING)] == [TrialState.RUNNING]


@QUICK
@given(WALKS)
def test_a_trial_finishes_at_most_once_and_then_stays(wanted: list[TrialState]) -> None:
    states = walk(wanted)
    finished = [state for state in states if state.is_finished]
    assert len(finished) <= 1
    assert not finished or states[-1] is finished[0]


@QUICK
@given(WALKS)
def test_nothing_is_measured_that_did_not_run(wanted: list[TrialState]) -> None:
    for before, after in pairwise(walk(wanted)):
        assert after is not TrialState.MEASURED or before is TrialState.RUNNING


@pytest.mark.parametrize("state", list(TrialState))
def test_every_state_can_be_reached(state: TrialState) -> None:
    reached = {TrialState.WAITING}
    for _ in TrialState:
        reached |= {new for new in TrialState if any(may_become(old, new) for old in reached)}
    assert state in reached


def test_cost_is_the_objective_even_of_what_breaks_a_limit() -> None:
    slow = measurement(tpot_ms=10.0, ttft_ms=1000.0)
    judged = verdict(slow)
    assert not judged.feasible
    assert trial(measurement=slow, verdict=judged).cost == pytest.approx(10.0)
    assert trial().cost is None


def test_only_the_label_makes_a_baseline() -> None:
    assert trial(label="baseline").is_baseline
    assert not trial(label="round-1").is_baseline
