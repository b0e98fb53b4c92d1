"""What every Proposer promises. A subclass gives `source`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autotune.domain.deployment import facts
from autotune.domain.failure import FailureClass
from autotune.domain.knobs import ChoiceKind, EnvVar, Knob, KnobValue
from autotune.domain.space import Rule, SearchSpace, Severity
from autotune.domain.study import Study, StudyState
from autotune.domain.trial import StudyPhase, Trial, TrialState
from autotune.engine.ports import Proposer, ProposerSource
from tests import builders
from tests.engine.history import START, History


def study(**changes: Any) -> Study:
    spec = builders.study_spec(**changes)
    return Study(id=1, uid="abc", spec=spec, state=StudyState.RUNNING, phase=StudyPhase.SEARCH, created_at=START)


class ProposerContract:
    @pytest.fixture
    def source(self) -> ProposerSource:
        raise NotImplementedError

    def make(
        self, source: ProposerSource, trials: Sequence[Trial] = (), space: SearchSpace | None = None, **spec: Any
    ) -> Proposer:
        return source.proposer(study(**spec), space or builders.space(), trials)

    def run(self, proposer: Proposer, history: History, count: int, space: SearchSpace | None = None) -> list[str]:
        """Ask, commit, measure and tell `count` times; gives the fingerprints."""
        space = space or builders.space()
        known = facts(history.spec.deployment, history.spec.workload)
        seen = []
        for _ in range(count):
            values = proposer.ask()
            if values is None:
                break
            settled = space.settle(space.complete(values), known)
            running = history.add(StudyPhase.SEARCH, values=settled.candidate.values, state=TrialState.RUNNING)
            running = running.model_copy(update={"candidate": settled.candidate, "proposal": dict(values)})
            proposer.pending(running)
            size = float(str(settled.candidate.values.get("buffer_mb") or 200))
            history.trials.pop()
            done = history.add(StudyPhase.SEARCH, values=settled.candidate.values, tpot_ms=5 + size / 1000)
            done = done.model_copy(update={"candidate": settled.candidate, "proposal": dict(values)})
            history.trials[-1] = done
            proposer.tell(done)
            seen.append(settled.candidate.fingerprint)
        return seen

    def test_every_proposal_fits_the_space(self, source: ProposerSource) -> None:
        proposer, history = self.make(source), History()
        self.run(proposer, history, 15)
        assert len(history.trials) == 15
        for trial in history.trials:
            assert builders.space().problems(trial.candidate.values) == []

    def test_no_candidate_is_proposed_twice(self, source: ProposerSource) -> None:
        seen = self.run(self.make(source), History(), 25)
        assert len(set(seen)) == len(seen) == 25

    def test_a_space_comes_to_its_end(self, source: ProposerSource) -> None:
        space = tiny_space()
        seen = self.run(self.make(source, space=space), History(), 50, space)
        assert len(seen) == 6

    def test_held_knobs_stay(self, source: ProposerSource) -> None:
        space = builders.space(hold={"expansion_mode": "AIV", "draft_length": None})
        proposer, history = self.make(source, space=space), History()
        self.run(proposer, history, 8, space)
        assert {t.candidate.values["expansion_mode"] for t in history.trials} == {"AIV"}
        assert all("draft_length" not in t.candidate.values for t in history.trials)

    def test_refused_candidates_are_not_proposed(self, source: ProposerSource) -> None:
        rule = Rule(
            name="no-aiv", severity=Severity.REFUSE, require="knobs.expansion_mode != 'AIV'", why="hangs", mend="unset"
        )
        space = builders.space(rules=(rule,), recipes=())
        proposer, history = self.make(source, space=space), History()
        self.run(proposer, history, 12, space)
        assert len(history.trials) == 12
        assert all(t.candidate.values.get("expansion_mode") != "AIV" for t in history.trials)

    def test_the_same_trials_give_the_same_next_proposal(self, source: ProposerSource) -> None:
        history = History().gate()
        proposer = self.make(source, list(history.trials))
        self.run(proposer, history, 9)
        straight = proposer.ask()
        rebuilt = self.make(source, list(history.trials)).ask()
        assert rebuilt == straight

    def test_other_seeds_give_other_proposals(self, source: ProposerSource) -> None:
        assert self.make(source, seed=1).ask() != self.make(source, seed=2).ask()

    def test_it_is_rebuilt_with_trials_in_flight(self, source: ProposerSource) -> None:
        history = History().gate()
        self.run(self.make(source, list(history.trials)), history, 3)
        flying = history.add(StudyPhase.SEARCH, values={"buffer_mb": 777}, state=TrialState.RUNNING)
        rebuilt = self.make(source, list(history.trials))
        seen = self.run(rebuilt, History(), 10)
        assert flying.candidate.fingerprint not in seen
        rebuilt.tell(flying.model_copy(update={"state": TrialState.CANCELLED}))

    @pytest.mark.parametrize("kind", [FailureClass.OUT_OF_MEMORY, FailureClass.INFRASTRUCTURE])
    def test_failures_can_be_told(self, source: ProposerSource, kind: FailureClass) -> None:
        history = History().gate()
        history.add(StudyPhase.SEARCH, values={"buffer_mb": 500}, failure=builders.failure(failure_class=kind))
        assert self.make(source, list(history.trials)).ask() is not None


def tiny_space() -> SearchSpace:
    """Six candidates in all."""
    values: dict[str, KnobValue] = {"a": "x", "b": "p"}
    return SearchSpace(
        name="six",
        engine="vllm-ascend",
        about="Six candidates.",
        knobs=(
            Knob(name="a", about="", type=ChoiceKind(values=("x", "y")), unset=True, lands=EnvVar(name="A")),
            Knob(name="b", about="", type=ChoiceKind(values=("p", "q")), lands=EnvVar(name="B")),
        ),
        baseline=values,
    )
