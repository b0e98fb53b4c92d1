"""Studies in which some launches find more in the prefix cache than the baseline does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.objective import judge
from autotune.domain.study import StudyState
from autotune.domain.trial import StudyPhase, Trial, TrialState
from autotune.engine.comparability import is_comparable, reference
from autotune.engine.confirmation import conclude
from autotune.engine.dispatch import Dispatcher
from autotune.engine.study_plan import finalists
from autotune.proposers.tpe import TpeSource
from tests import builders
from tests.engine.history import History
from tests.fakes import InMemoryStudyStore, ManualClock, ScriptedExecutor

BASE = 11392.0
WARM = 900.0


def is_warm(job: TrialJob) -> bool:
    """AIV keeps the whole prompt in the cache, so that it looks twice as fast."""
    return job.plan.roles["server"].env.get("HCCL_OP_EXPANSION_MODE") == "AIV"


def play(job: TrialJob, uncached: Callable[[TrialJob], float] = lambda job: WARM if is_warm(job) else BASE) -> Any:
    size = int(job.plan.roles["server"].env.get("HCCL_BUFFSIZE", "200"))
    tpot = (7.0 if is_warm(job) else 14.0) * (1 - size / 100_000)
    return builders.outcome(job, measurement=builders.measurement(tpot, uncached_tokens=uncached(job)))


class World:
    def __init__(self, outcome: Callable[[TrialJob], TrialOutcome] = play, **spec: Any) -> None:
        self.clock = ManualClock()
        self.store = InMemoryStudyStore(self.clock.now)
        self.executor = ScriptedExecutor(outcome, slots=2, clock=self.clock)
        self.study = self.store.create_study(builders.study_spec(gate_launches=3, **spec), builders.space())

    def dispatcher(self, owner: str = "one") -> Dispatcher:
        return Dispatcher(self.store, self.executor, TpeSource(), self.clock, owner=owner, report=lambda _: None)

    def run(self, deaths: list[int] | None = None) -> list[Trial]:
        dispatcher = self.dispatcher()
        for turn in range(300):
            if turn in (deaths or []):
                dispatcher = self.dispatcher(f"again-{turn}")
            dispatcher.turn()
            if self.store.study(self.study.id).state.is_finished:
                break
        assert self.store.study(self.study.id).state is StudyState.DONE
        return list(self.store.trials(self.study.id).items)


def by_warmth(trials: list[Trial]) -> tuple[list[Trial], list[Trial]]:
    warm = [t for t in trials if t.candidate.values.get("expansion_mode") == "AIV"]
    return warm, [t for t in trials if t not in warm]


def test_a_trial_with_other_uncached_tokens_is_not_compared() -> None:
    world = World()
    warm, cold = by_warmth(world.run())
    assert warm
    assert all(t.state is TrialState.MEASURED for t in warm)
    for trial in warm:
        assert trial.verdict is not None
        assert (trial.verdict.feasible, trial.verdict.comparable, trial.cost) == (False, False, None)
        assert trial.verdict.reasons[0] == "not comparable: 900 uncached tokens a request at c1, the baseline had 11392"
        assert trial.phase is not StudyPhase.CONFIRM
    assert all(t.verdict is not None and t.verdict.feasible for t in cold)


def test_it_is_never_best_nor_finalist() -> None:
    world = World()
    trials = world.run()
    spec = world.study.spec
    assert all(c.values.get("expansion_mode") != "AIV" for c in finalists(spec, trials))
    briefs = world.store.briefs([world.study.id])[world.study.id]
    warm, _ = by_warmth(trials)
    assert all(b.objective is None and b.feasible is False for b in briefs if b.number in {t.number for t in warm})


@given(deaths=st.lists(st.integers(0, 40), max_size=4))
@settings(max_examples=15, deadline=None)
def test_a_restart_judges_alike(deaths: list[int]) -> None:
    warm, cold = by_warmth(World().run(deaths))
    assert not any(map(is_comparable, warm))
    assert all(map(is_comparable, cold))


def test_a_baseline_launch_that_differs_from_the_others_is_flagged_too() -> None:
    odd = 2
    world = World(lambda job: play(job, lambda job: 30_000.0 if job.trial_number == odd else BASE))
    (flagged,) = (t for t in world.run() if not is_comparable(t))
    assert (flagged.number, flagged.phase) == (odd, StudyPhase.GATE)
    assert flagged.verdict is not None
    assert "30000 uncached tokens a request at c1, the baseline had 11392" in flagged.verdict.reasons[0]


def test_a_server_that_does_not_report_changes_nothing() -> None:
    assert all(map(is_comparable, World(builders.outcome).run()))


def held_to(history: History, trial: Trial) -> dict[str, float]:
    assert trial.measurement is not None
    return reference(history.trials, trial, trial.measurement).uncached_tokens


def test_the_reference_is_the_median_of_the_gate() -> None:
    history = History(builders.study_spec(workload=builders.workload(("c1",))))
    for tokens in (1000.0, 9000.0, 1100.0):
        add(history, StudyPhase.GATE, "baseline", tokens)
    search = add(history, StudyPhase.SEARCH, "search", 5000.0)
    assert held_to(history, search) == {"c1": 1100.0}
    # Verdicts of the gate are final: its launches are held to what was known then, and to themselves.
    assert held_to(History(), history.trials[0]) == {"c1": 1000.0}
    first_two = History()
    first_two.trials = history.trials[:1]
    assert held_to(first_two, history.trials[1]) == {"c1": 5000.0}


def add(history: History, phase: StudyPhase, label: str, tokens: float, tpot_ms: float = 10.0) -> Trial:
    """A measured trial that is judged as the engine does."""
    trial = history.add(phase, label, None if label == "baseline" else {"expansion_mode": "AIV"})
    measured = builders.measurement(tpot_ms, levels=("c1",), uncached_tokens=tokens)
    spec = history.spec
    verdict = judge(measured, spec.objective, spec.sla, reference(history.trials[:-1], trial, measured))
    history.trials[-1] = trial.model_copy(update={"measurement": measured, "verdict": verdict})
    return history.trials[-1]


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_finalist_of_which_one_launch_differs_is_not_confirmed(odd: int) -> None:
    history = History(builders.study_spec(workload=builders.workload(("c1",))))
    for _ in range(3):
        add(history, StudyPhase.GATE, "baseline", BASE)
    for turn in range(3):
        add(history, StudyPhase.CONFIRM, "baseline", BASE)
        add(history, StudyPhase.CONFIRM, "finalist-1", WARM if turn == odd else BASE, tpot_ms=5.0)
    found = conclude(history.spec, history.trials)
    (contender,) = found.contenders
    assert found.winner is None
    assert contender.reason == "1 of 3 launches can't be compared with the baseline"
    assert contender.evidence.objective is not None
    assert contender.evidence.objective.n == 2  # the launch is counted, its figures are not


def test_a_baseline_launch_that_differs_is_left_out_of_the_comparison() -> None:
    history = History(builders.study_spec(workload=builders.workload(("c1",))))
    for _ in range(3):
        add(history, StudyPhase.GATE, "baseline", BASE)
    for turn in range(3):
        add(history, StudyPhase.CONFIRM, "baseline", WARM if turn == 0 else BASE, tpot_ms=1.0 if turn == 0 else 10.0)
        add(history, StudyPhase.CONFIRM, "finalist-1", BASE, tpot_ms=5.0)
    found = conclude(history.spec, history.trials)
    assert found.winner is not None
    assert found.winner.gain_pct is not None
    assert found.winner.gain_pct.mean == pytest.approx(50.0)
    assert found.baseline.objective is not None
    assert found.baseline.objective.n == 2
