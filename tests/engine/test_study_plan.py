"""The plan of a study, step by step, from nothing but its trials."""

from __future__ import annotations

from datetime import timedelta

import pytest

from autotune.domain.failure import FailureClass
from autotune.domain.study import Budget, Confirmation, StudySpec, StudyState
from autotune.domain.trial import StudyPhase, TrialState
from autotune.engine.study_plan import (
    UNUSABLE_AFTER,
    Finish,
    Launch,
    Search,
    Step,
    StudyProgress,
    Wait,
    active_time_s,
    finalists,
    next_step,
)
from tests import builders
from tests.engine.history import START, History


def step(history: History, *, exhausted: bool = False, skipped: frozenset[str] = frozenset()) -> Step:
    progress = StudyProgress(now=history.now, exhausted=exhausted, skipped=skipped)
    return next_step(history.spec, builders.space(), history.trials, progress)


def test_a_study_begins_with_the_baseline() -> None:
    first = step(History())
    assert first == Launch(phase=StudyPhase.GATE, label="baseline", values=builders.space().complete({}))


def test_the_gate_waits_for_all_its_launches() -> None:
    history = History()
    history.add(StudyPhase.GATE, "baseline")
    history.add(StudyPhase.GATE, "baseline", state=TrialState.RUNNING)
    assert step(history) == Wait()


def test_one_failed_launch_of_the_baseline_is_made_up_for() -> None:
    history = History()
    history.add(StudyPhase.GATE, "baseline", failure=builders.failure())
    history.add(StudyPhase.GATE, "baseline")
    assert isinstance(step(history), Launch)
    history.add(StudyPhase.GATE, "baseline")
    assert step(history) != Wait()
    assert not isinstance(step(history), Finish)


def test_a_baseline_that_crashes_twice_ends_the_study_with_its_cause() -> None:
    history = History()
    for _ in range(2):
        history.add(StudyPhase.GATE, "baseline", failure=builders.failure())
    end = step(history)
    assert isinstance(end, Finish)
    assert end.state is StudyState.FAILED
    assert "out_of_memory" in end.finding
    assert "the device ran out of memory" in end.finding


def test_recipes_come_next_and_get_one_retry() -> None:
    history = History().gate()
    recipe = step(history)
    assert isinstance(recipe, Launch)
    assert (recipe.phase, recipe.label) == (StudyPhase.RECIPES, "aiv")
    history.add(StudyPhase.RECIPES, "aiv", {"expansion_mode": "AIV"}, failure=builders.failure())
    assert step(history) == recipe
    history.add(StudyPhase.RECIPES, "aiv", {"expansion_mode": "AIV"}, failure=builders.failure())
    assert step(history) == Search()


@pytest.mark.parametrize(("recipes", "first"), [(True, "aiv"), (("aiv",), "aiv"), ((), None), (False, None)])
def test_a_study_may_name_its_recipes(recipes: bool | tuple[str, ...], first: str | None) -> None:
    then = step(History(builders.study_spec(recipes=recipes)).gate())
    assert (then.label if isinstance(then, Launch) else None) == first


def test_a_recipe_that_the_rules_refuse_is_left_out() -> None:
    assert step(History().gate(), skipped=frozenset({"aiv"})) == Search()


def test_search_ends_where_the_budget_of_the_confirmation_begins() -> None:
    history = History().gate().recipe()
    while step(history) == Search():
        history.add(StudyPhase.SEARCH, values={"buffer_mb": 64 + len(history.trials)}, tpot_ms=11.0)
    assert len(history.trials) == history.spec.budget.trials - history.spec.confirmation.launches
    assert isinstance(step(history), Launch)


def test_search_ends_when_the_proposer_has_nothing_left() -> None:
    launch = step(History().gate().recipe(), exhausted=True)
    assert isinstance(launch, Launch)
    assert launch.phase is StudyPhase.CONFIRM


def test_confirmation_waits_for_the_search_in_flight() -> None:
    history = History().gate().recipe()
    history.add(StudyPhase.SEARCH, state=TrialState.RUNNING)
    assert step(history, exhausted=True) == Wait()


def test_wall_time_keeps_room_for_the_confirmation() -> None:
    spec = builders.study_spec(budget=Budget(trials=100, wall_time_s=80))
    history = History(spec).gate().recipe()
    # 30 s are spent; four more launches of 10 s each do not reach 80 s yet, but will after one more trial.
    assert step(history) == Search()
    history.add(StudyPhase.SEARCH, values={"buffer_mb": 99})
    launch = step(history)
    assert isinstance(launch, Launch)
    assert launch.phase is StudyPhase.CONFIRM


def test_confirmation_interleaves_and_turns_round() -> None:
    spec = builders.study_spec(
        budget=Budget(trials=40, wall_time_s=3600), confirmation=Confirmation(finalists=2, rounds=2)
    )
    history = History(spec).gate().recipe(12.0)
    history.add(StudyPhase.SEARCH, values={"buffer_mb": 128}, tpot_ms=11.0)
    labels = []
    while isinstance(launch := step(history, exhausted=True), Launch):
        assert launch.phase is StudyPhase.CONFIRM
        labels.append(launch.label)
        history.add(StudyPhase.CONFIRM, launch.label, launch.values)
    assert labels == ["baseline", "finalist-1", "finalist-2", "finalist-2", "finalist-1", "baseline"]
    assert isinstance(launch, Finish)
    assert launch.state is StudyState.DONE


def test_without_a_feasible_candidate_nothing_is_proven() -> None:
    history = History().gate()
    history.add(StudyPhase.RECIPES, "aiv", {"expansion_mode": "AIV"}, tpot_ms=5.0, ttft_ms=500.0)
    end = step(history, exhausted=True)
    assert isinstance(end, Finish)
    assert end.state is StudyState.DONE
    assert end.finding.startswith("not proven")


def test_finalists_are_feasible_distinct_and_never_the_baseline() -> None:
    spec = builders.study_spec(
        budget=Budget(trials=40, wall_time_s=3600), confirmation=Confirmation(finalists=3, rounds=2)
    )
    history = History(spec).gate(tpot_ms=9.0).recipe(12.0)
    history.add(StudyPhase.SEARCH, values={"buffer_mb": 100}, tpot_ms=10.0)
    history.add(StudyPhase.SEARCH, values={"buffer_mb": 200}, tpot_ms=5.0, ttft_ms=999.0)
    history.add(StudyPhase.SEARCH, values={"buffer_mb": 300}, failure=builders.failure())
    assert [c.values.get("buffer_mb") for c in finalists(spec, history.trials)] == [100, None]


def test_a_recipe_that_ran_at_its_second_launch_can_win() -> None:
    history = History().gate()
    history.add(StudyPhase.RECIPES, "aiv", {"expansion_mode": "AIV"}, failure=builders.failure())
    history.add(StudyPhase.RECIPES, "aiv", {"expansion_mode": "AIV"}, tpot_ms=5.0)
    assert [c.values["expansion_mode"] for c in finalists(history.spec, history.trials)] == ["AIV"]


def test_cancelled_trials_cost_no_budget() -> None:
    history = History().gate().recipe()
    for _ in range(50):
        history.add(StudyPhase.SEARCH, state=TrialState.CANCELLED)
    assert step(history) == Search()


def test_wall_time_counts_only_what_ran() -> None:
    history = History()
    one = history.add(StudyPhase.GATE, "baseline")
    late = one.model_copy(update={"started_at": START.replace(hour=5), "finished_at": START.replace(hour=5, second=7)})
    twin = one.model_copy(update={"number": 2})
    assert active_time_s([one, late, twin], START.replace(hour=9)) == 17.0


def test_a_budget_below_the_fixed_launches_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ValueError, match=r"budget.trials: 5 is less than the 7 launches"):
        StudySpec.model_validate({**builders.study_spec().model_dump(), "budget": {"trials": 5, "wall_time_s": 60}})


LOST = builders.failure(failure_class=FailureClass.INFRASTRUCTURE, summary="the device is not free", host="host-b")


def lose(history: History, times: int, phase: StudyPhase = StudyPhase.SEARCH) -> None:
    """Trials of different candidates that the infrastructure lost."""
    for _ in range(times):
        history.add(phase, values={"buffer_mb": 100 + len(history.trials)}, failure=LOST)


def test_a_baseline_that_is_always_lost_says_that_the_hosts_are_unusable() -> None:
    history = History()
    for _ in range(2):
        history.add(StudyPhase.GATE, "baseline", failure=LOST)
    end = step(history)
    assert isinstance(end, Finish)
    assert end.state is StudyState.FAILED
    assert end.finding == (
        "the hosts are unusable: 2 trials in a row were lost in 2 launches (on host-b), and no candidate is to blame; "
        "the last one: infrastructure in phase ready: the device is not free"
    )


def test_a_baseline_that_also_crashed_by_itself_is_named_by_its_failure() -> None:
    history = History()
    history.add(StudyPhase.GATE, "baseline", failure=LOST)
    history.add(StudyPhase.GATE, "baseline", failure=builders.failure())
    end = step(history)
    assert isinstance(end, Finish)
    assert end.finding.startswith("the baseline does not run: out_of_memory")


def test_a_study_stops_when_candidate_after_candidate_is_lost() -> None:
    history = History().gate().recipe()
    lose(history, UNUSABLE_AFTER - 1)
    assert step(history) == Search()
    lose(history, 1)
    end = step(history)
    assert isinstance(end, Finish)
    assert end.state is StudyState.FAILED
    assert "hosts are unusable: 3 trials in a row" in end.finding
    history.add(StudyPhase.SEARCH, state=TrialState.RUNNING)
    assert step(history) == Wait()


def test_one_trial_that_is_measured_or_fails_by_itself_breaks_the_row() -> None:
    for failure in (None, builders.failure()):
        history = History().gate().recipe()
        lose(history, UNUSABLE_AFTER - 1)
        history.add(StudyPhase.SEARCH, values={"buffer_mb": 99}, failure=failure)
        lose(history, UNUSABLE_AFTER - 1)
        assert step(history) == Search()


def test_one_candidate_that_is_lost_again_and_again_does_not_stop_the_study() -> None:
    history = History().gate().recipe()
    for _ in range(UNUSABLE_AFTER):
        history.add(StudyPhase.SEARCH, values={"buffer_mb": 99}, failure=LOST)
    assert step(history) == Search()


def test_a_resumed_study_gets_a_new_chance() -> None:
    history = History().gate().recipe()
    lose(history, UNUSABLE_AFTER)
    again = StudyProgress(now=history.now, taken_up=history.now + timedelta(seconds=1))
    assert next_step(history.spec, builders.space(), history.trials, again) == Search()
    history = History()
    for _ in range(2):
        history.add(StudyPhase.GATE, "baseline", failure=LOST)
    assert isinstance(next_step(history.spec, builders.space(), history.trials, again), Launch)


def test_what_was_lost_is_not_held_against_a_finalist() -> None:
    history = History().gate()
    history.add(StudyPhase.RECIPES, "aiv", {"expansion_mode": "AIV"}, failure=LOST)
    history.add(StudyPhase.RECIPES, "aiv", {"expansion_mode": "AIV"}, failure=LOST)
    history.add(StudyPhase.RECIPES, "aiv", {"expansion_mode": "AIV"}, tpot_ms=5.0)
    assert [c.values["expansion_mode"] for c in finalists(history.spec, history.trials)] == ["AIV"]


def test_a_launch_of_the_confirmation_that_was_lost_is_made_again() -> None:
    history = History().gate().recipe(5.0)
    labels = []
    while isinstance(launch := step(history, exhausted=True), Launch):
        labels.append(launch.label)
        failure = LOST if labels == ["baseline", "finalist-1"] else None
        tpot_ms = 10.0 if launch.label == "baseline" else 5.0
        history.add(StudyPhase.CONFIRM, launch.label, launch.values, tpot_ms=tpot_ms, failure=failure)
    assert labels == ["baseline", "finalist-1", "finalist-1", "finalist-1", "baseline"]
    assert isinstance(launch, Finish)
    assert launch.finding.startswith("confirmed: finalist-1")
