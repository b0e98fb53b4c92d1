"""TPE keeps the promises of a proposer, learns from crashes, and encodes every kind of knob."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.early_abort import LEAST_OBJECTIVE
from autotune.domain.failure import FailureClass, FailureValue
from autotune.domain.knobs import BooleanKind, ChoiceKind, EnvVar, FloatKind, IntegerKind, Knob, KnobValue, ListKind
from autotune.domain.objective import Verdict
from autotune.domain.space import SearchSpace
from autotune.domain.trial import StudyPhase, TrialState
from autotune.engine.ports import ProposerSource
from autotune.proposers.encoding import encode
from autotune.proposers.tpe import TpeSource
from tests import builders
from tests.contracts.proposer_contract import ProposerContract, study
from tests.engine.history import History


class TestTpe(ProposerContract):
    @pytest.fixture
    def source(self) -> ProposerSource:
        return TpeSource()


def crash_space() -> SearchSpace:
    """One switch that always crashes, one number that matters."""
    return SearchSpace(
        name="crash",
        engine="vllm-ascend",
        about="Half of it crashes.",
        knobs=(
            Knob(name="bad", about="", type=BooleanKind(), lands=EnvVar(name="BAD")),
            Knob(name="size", about="", type=IntegerKind(low=1, high=1000), lands=EnvVar(name="SIZE")),
        ),
        baseline={"bad": False, "size": 500},
    )


def test_what_can_not_be_compared_is_learned_too() -> None:
    """Without a number a trial teaches nothing; as an infeasible one it keeps the search away."""
    strange = 0
    space, history = crash_space(), History()
    proposer = TpeSource().proposer(study(seed=3), space, ())
    for _ in range(30):
        values = proposer.ask()
        assert values is not None
        candidate = space.settle(space.complete(values), {}).candidate
        running = history.add(StudyPhase.SEARCH, state=TrialState.RUNNING)
        history.trials.pop()
        changes: dict[str, Any] = {"candidate": candidate, "proposal": dict(values)}
        proposer.pending(running.model_copy(update=changes))
        done = history.add(StudyPhase.SEARCH, tpot_ms=10 + float(str(values["size"])) / 1000)
        if values["bad"]:
            strange += 1
            changes["verdict"] = Verdict(feasible=False, comparable=False, objective=None, reasons=("not comparable",))
        history.trials[-1] = done.model_copy(update=changes)
        proposer.tell(history.trials[-1])
    assert 0 < strange <= 12
    rebuilt = TpeSource().proposer(study(seed=3), space, history.trials)
    assert rebuilt.ask() == proposer.ask()


def test_a_trial_that_was_cut_is_learned_as_a_bad_one() -> None:
    space, history, slow = crash_space(), History(), 0
    value = FailureValue(name=LEAST_OBJECTIVE, value=15.0, unit="ms")
    failure = builders.failure(FailureClass.HOPELESS, values=(value,))
    proposer = TpeSource().proposer(study(seed=3), space, ())
    for _ in range(30):
        values = proposer.ask()
        assert values is not None
        candidate = space.settle(space.complete(values), {}).candidate
        slow += bool(values["bad"])
        tpot_ms = 10 + float(str(values["size"])) / 1000
        done = history.add(StudyPhase.SEARCH, tpot_ms=tpot_ms, failure=failure if values["bad"] else None)
        history.trials[-1] = done.model_copy(update={"candidate": candidate, "proposal": dict(values)})
        proposer.tell(history.trials[-1])
    assert 0 < slow <= 12
    assert TpeSource().proposer(study(seed=3), space, history.trials).ask() is not None


def test_a_crash_is_learned_and_not_repeated_all_night() -> None:
    """Told as FAIL, TPE chose the crashing value in 35 of 40 trials; told as a broken constraint, in few."""
    crashes = 0
    space, history = crash_space(), History()
    proposer = TpeSource().proposer(study(seed=3), space, ())
    for _ in range(30):
        values = proposer.ask()
        assert values is not None
        candidate = space.settle(space.complete(values), {}).candidate
        running = history.add(StudyPhase.SEARCH, state=TrialState.RUNNING)
        history.trials.pop()
        changes = {"candidate": candidate, "proposal": dict(values)}
        proposer.pending(running.model_copy(update=changes))
        if values["bad"]:
            crashes += 1
            done = history.add(StudyPhase.SEARCH, failure=builders.failure())
        else:
            # The crashing half would look best by far if a crash counted as its neighbour's number.
            done = history.add(StudyPhase.SEARCH, tpot_ms=10 + float(str(values["size"])) / 1000)
        done = done.model_copy(update=changes)
        history.trials[-1] = done
        proposer.tell(done)
    assert crashes <= 12


KNOBS = (
    Knob(name="flag", about="", type=BooleanKind(), unset=True, lands=EnvVar(name="FLAG")),
    Knob(name="pick", about="", type=ChoiceKind(values=("a", 2, 2.5, (1, 2))), unset=True, lands=EnvVar(name="PICK")),
    Knob(name="count", about="", type=IntegerKind(low=8, high=64, step=8), unset=True, lands=EnvVar(name="COUNT")),
    Knob(
        name="sizes",
        about="",
        type=ListKind(items=(1, 2, 4, 8), min_length=2, max_length=3),
        unset=True,
        lands=EnvVar(name="SIZES"),
    ),
    Knob(name="share", about="", type=FloatKind(low=0.1, high=0.9), lands=EnvVar(name="SHARE")),
)


@given(
    flag=st.sampled_from([None, True, False]),
    pick=st.sampled_from([None, "a", 2, 2.5, (1, 2)]),
    count=st.sampled_from([None, 8, 16, 64]),
    sizes=st.sampled_from([None, (1, 2), (2, 4, 8), (1, 8)]),
    share=st.floats(0.1, 0.9),
)
@settings(max_examples=60, deadline=None)
def test_every_value_survives_the_way_through_optuna(
    flag: KnobValue, pick: KnobValue, count: KnobValue, sizes: KnobValue, share: float
) -> None:
    space = SearchSpace(name="kinds", engine="e", about="", knobs=KNOBS, baseline={"share": 0.5})
    values: dict[str, KnobValue] = {"flag": flag, "pick": pick, "count": count, "sizes": sizes, "share": share}
    params, distributions = encode(values, space, {})
    assert params.keys() == distributions.keys()
    for name, value in params.items():
        assert distributions[name]._contains(distributions[name].to_internal_repr(value))
    proposer = TpeSource().proposer(study(), space, ())
    trial = History().add(StudyPhase.SEARCH, state=TrialState.RUNNING)
    proposer.pending(trial.model_copy(update={"proposal": values}))
    drawn = proposer.ask()
    assert drawn is not None
    assert space.problems(drawn) == []
