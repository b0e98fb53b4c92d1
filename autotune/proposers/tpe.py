"""Optuna's TPE behind the proposer port, on an in-memory study that is rebuilt from the stored trials.

A crash is told as COMPLETE with a broken constraint and a finite penalty: told as FAIL, TPE repeated a
crashing choice in 35 of 40 trials. So is a trial that can't be compared with the baseline. What the
infrastructure lost is told as FAIL, which samplers ignore.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence

import optuna
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from autotune.domain.deployment import facts
from autotune.domain.early_abort import least_objective
from autotune.domain.knobs import KnobValue
from autotune.domain.space import SearchSpace
from autotune.domain.study import Study
from autotune.domain.trial import StudyPhase, Trial, TrialState
from autotune.errors import InvalidCandidate
from autotune.proposers.encoding import draw, encode

MODEL_TRIES = 20
RANDOM_TRIES = 200
STARTUP_TRIALS = 6


class TpeProposer:
    """A Proposer. Same study and same stored trials give the same next proposal."""

    def __init__(self, study: Study, space: SearchSpace, trials: Sequence[Trial]) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._facts = facts(study.spec.deployment, study.spec.workload)
        self._objective = study.spec.objective
        self._seed = study.spec.seed
        self._study = optuna.create_study(direction="minimize", sampler=RandomSampler(seed=study.spec.seed))
        self._known: set[str] = set()
        self._costs: list[float] = []
        self._searched = 0
        self._asked: tuple[dict[str, KnobValue], optuna.Trial] | None = None
        self._pending: dict[int, optuna.Trial] = {}
        for trial in trials:
            if trial.state.is_finished:
                if trial.phase is StudyPhase.SEARCH:
                    self._searched += 1
                self.tell(trial)
            else:
                self.pending(trial)

    def ask(self) -> Mapping[str, KnobValue] | None:
        for attempt in range(MODEL_TRIES + RANDOM_TRIES):
            self._study.sampler = self._sampler(attempt)
            asked = self._study.ask()
            values = draw(asked, self._space, self._facts)
            try:
                candidate = self._space.settle(self._space.complete(values), self._facts).candidate
            except InvalidCandidate:
                candidate = None
            if candidate is not None and candidate.fingerprint not in self._known:
                self._asked = (values, asked)
                return values
            self._study.tell(asked, state=OptunaState.FAIL)
        return None

    def pending(self, trial: Trial) -> None:
        self._known.add(trial.candidate.fingerprint)
        if trial.phase is not StudyPhase.SEARCH:
            return
        self._searched += 1
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] == trial.proposal:
            self._pending[trial.number] = asked[1]
            return
        # After a restart: ask again with the same parameters, so that parallel proposals keep away from it.
        params, _ = encode(trial.proposal, self._space, self._facts)
        self._study.enqueue_trial(params)
        self._study.sampler = self._sampler(0)
        live = self._study.ask()
        draw(live, self._space, self._facts)
        self._pending[trial.number] = live

    def tell(self, trial: Trial) -> None:
        self._known |= {trial.candidate.fingerprint, trial.counts_for.fingerprint}
        live = self._pending.pop(trial.number, None)
        judged = self._judged(trial)
        if judged is None:
            if live is not None:
                self._study.tell(live, state=OptunaState.FAIL)
            return
        value, constraints = judged
        if live is not None:
            for key, excess in constraints.items():
                live.set_constraint(key, excess)
            self._study.tell(live, value)
            return
        params, distributions = encode(trial.proposal, self._space, self._facts)
        self._study.add_trial(
            create_trial(value=value, params=params, distributions=distributions, constraints=constraints)
        )

    def _judged(self, trial: Trial) -> tuple[float, dict[str, float]] | None:
        """Cost and constraints, always the same keys in the same order; None teaches nothing."""
        if trial.state is TrialState.CANCELLED:
            return None
        if trial.failure is not None:
            if trial.is_lost:
                return None
            if (least := least_objective(trial.failure)) is not None:
                return self._objective.cost(least), {"crash": -1.0, "sla": 0.0}
            return self._penalty(), {"crash": 1.0, "sla": 1.0}
        if trial.verdict is not None and not trial.verdict.comparable:
            return self._penalty(), {"crash": -1.0, "sla": 1.0}
        if trial.verdict is None or trial.cost is None:
            return None
        cost = self._objective.cost(trial.cost)
        self._costs.append(cost)
        feasible = trial.verdict.feasible
        excess = trial.verdict.worst_excess
        return cost, {"crash": -1.0, "sla": min(excess, 0.0) if feasible else max(excess, 1e-3)}

    def _penalty(self) -> float:
        return statistics.median(self._costs) if self._costs else 0.0

    def _sampler(self, attempt: int) -> BaseSampler:
        # One seed per proposal: a sampler made anew with the study's seed would repeat its first suggestion.
        text = f"{self._seed}/{self._searched}/{attempt}".encode()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
        if attempt >= MODEL_TRIES:
            return RandomSampler(seed=seed)
        return TPESampler(
            seed=seed,
            n_startup_trials=STARTUP_TRIALS,
            multivariate=True,
            group=False,
            constant_liar=True,
        )


class TpeSource:
    """A ProposerSource that makes TPE proposers."""

    def proposer(self, study: Study, space: SearchSpace, trials: Sequence[Trial]) -> TpeProposer:
        return TpeProposer(study, space, trials)
