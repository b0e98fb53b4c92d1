"""What a study does next, as a pure function of what is stored: so a restart needs no memory.

Phases: gate (the baseline, several launches) -> recipes -> search -> confirm (the best few and the baseline,
fresh launches, interleaved).
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from autotune.domain.candidate import Candidate
from autotune.domain.failure import RetryPolicy
from autotune.domain.knobs import KnobValue
from autotune.domain.retry import MENDED_FIRST, launched_again
from autotune.domain.space import SearchSpace
from autotune.domain.study import StudySpec, StudyState
from autotune.domain.trial import StudyPhase, Trial, TrialState
from autotune.domain.value import Value
from autotune.engine.confirmation import BASELINE, conclude

# So many different candidates in a row, each lost in all its attempts and nothing measured between: the next one
# would be lost too. One or two may be what a single recipe does to a host.
UNUSABLE_AFTER = 3


class Launch(Value):
    """Launch these values next."""

    phase: StudyPhase
    label: str
    values: dict[str, KnobValue]


class Search(Value):
    """Ask the proposer for a candidate."""


class Wait(Value):
    """Nothing to start before something in flight has ended."""


class Finish(Value):
    """The study is over."""

    state: StudyState
    finding: str


Step = Launch | Search | Wait | Finish


class StudyProgress(Value):
    """What the plan depends on, besides the trials.

    `skipped` holds the labels of recipes that the space's rules refuse; `exhausted` says that the proposer
    has nothing left to try. What was lost before the study was `taken_up` does not stop it: a resumed study's hosts
    may have been mended.
    """

    now: datetime
    taken_up: datetime | None = None
    skipped: frozenset[str] = frozenset()
    exhausted: bool = False


def next_step(spec: StudySpec, space: SearchSpace, trials: Sequence[Trial], progress: StudyProgress) -> Step:
    """The next thing to do; call again after it was done or when a trial has ended."""
    live = [t for t in trials if t.state is not TrialState.CANCELLED]
    step = _gate(spec, space, live, progress) or _lost_in_a_row(live, progress)
    if step is not None:
        return step
    if not any(t.phase is StudyPhase.CONFIRM for t in live):
        left = spec.budget.trials - spec.confirmation.launches - len(live)
        if left > 0 and not _time_is_up(spec, live, progress.now):
            recipe = _recipe(spec, space, live, progress.skipped)
            if recipe is not None:
                return recipe
            if not progress.exhausted:
                return Search()
        if any(not t.state.is_finished for t in live):
            return Wait()
    return _confirm(spec, space, live, progress.now)


def _is_past(trial: Trial, progress: StudyProgress) -> bool:
    """Whether it was lost before the study was taken up this time."""
    begin, end = progress.taken_up, trial.finished_at
    return trial.is_lost and begin is not None and end is not None and end < begin


def _lost_in_a_row(trials: Sequence[Trial], progress: StudyProgress) -> Step | None:
    """The end of a study whose hosts take nothing any more, once nothing is in flight that could prove otherwise."""
    ended = [t for t in trials if t.state.is_finished and t.finished_at is not None]
    ended.sort(key=lambda t: (t.finished_at, t.number))
    row = list(itertools.takewhile(lambda t: t.is_lost and not _is_past(t, progress), reversed(ended)))
    if len({t.candidate.fingerprint for t in row}) < UNUSABLE_AFTER:
        return None
    return Wait() if len(ended) < len(trials) else Finish(state=StudyState.FAILED, finding=_unusable(row))


def _unusable(row: Sequence[Trial]) -> str:
    """`row` holds what was lost, the latest first."""
    launches = sum(t.attempt for t in row)
    hosts = sorted({t.provenance.host for t in row if t.provenance} | {t.failure.host or "" for t in row if t.failure})
    where = f" (on {', '.join(filter(None, hosts))})" if any(hosts) else ""
    last = row[0].failure
    assert last is not None
    return (
        f"the hosts are unusable: {len(row)} trials in a row were lost in {launches} launches{where}, and no candidate "
        f"is to blame; the last one: {last.failure_class} in phase {last.phase}: {last.summary}"
        f"{f'. {MENDED_FIRST}' if last.worth is RetryPolicy.REPAIR else ''}"
    )


def _gate(spec: StudySpec, space: SearchSpace, trials: Sequence[Trial], progress: StudyProgress) -> Step | None:
    gate = [t for t in trials if t.phase is StudyPhase.GATE and not _is_past(t, progress)]
    failed = [t for t in gate if t.state is TrialState.FAILED]
    flying = [t for t in gate if not t.state.is_finished]
    if failed and not launched_again(StudyPhase.GATE, len(failed)):
        if flying:
            return Wait()
        if all(t.is_lost for t in failed):
            return Finish(state=StudyState.FAILED, finding=_unusable(failed[::-1]))
        failure = failed[-1].failure
        assert failure is not None
        return Finish(
            state=StudyState.FAILED,
            finding=f"the baseline does not run: {failure.failure_class} in phase {failure.phase}: {failure.summary}",
        )
    if len(gate) - len(failed) < spec.gate_launches:
        return Launch(phase=StudyPhase.GATE, label=BASELINE, values=space.complete({}))
    if flying:
        return Wait()
    usable = [t for t in gate if t.cost is not None]
    if not usable:
        reasons = next((t.measurement.trust_reasons for t in gate if t.measurement), ())
        why = "; ".join(reasons) or "the objective is undefined"
        return Finish(state=StudyState.FAILED, finding=f"the baseline gives no usable measurement: {why}")
    return None


def _recipe(spec: StudySpec, space: SearchSpace, trials: Sequence[Trial], skipped: frozenset[str]) -> Step | None:
    wanted = [r for r in space.recipes if spec.recipes is True or (spec.recipes and r.name in spec.recipes)]
    for recipe in wanted:
        tried = [t for t in trials if t.phase is StudyPhase.RECIPES and t.label == recipe.name]
        failed_only = tried and all(t.state is TrialState.FAILED for t in tried)
        again = failed_only and launched_again(StudyPhase.RECIPES, len(tried))
        if recipe.name not in skipped and (not tried or again):
            return Launch(phase=StudyPhase.RECIPES, label=recipe.name, values=space.complete(recipe.values))
    return None


def active_time_s(trials: Sequence[Trial], now: datetime) -> float:
    """Seconds in which at least one trial ran: a study that lay still spends none of its wall time."""
    spans = sorted((t.started_at, t.finished_at or now) for t in trials if t.started_at is not None)
    total = 0.0
    reached: datetime | None = None
    for start, end in spans:
        begin = start if reached is None else max(start, reached)
        if end > begin:
            total += (end - begin).total_seconds()
        reached = end if reached is None else max(reached, end)
    return total


def _time_is_up(spec: StudySpec, trials: Sequence[Trial], now: datetime) -> bool:
    """Whether the time left is needed for the confirmation, at the pace of the trials so far."""
    lengths = [
        (t.finished_at - t.started_at).total_seconds()
        for t in trials
        if t.started_at is not None and t.finished_at is not None and t.state is TrialState.MEASURED
    ]
    pace = statistics.fmean(lengths) / spec.parallel_trials if lengths else 0.0
    return active_time_s(trials, now) + pace * spec.confirmation.launches >= spec.budget.wall_time_s


def finalists(spec: StudySpec, trials: Sequence[Trial]) -> list[Candidate]:
    """The best feasible candidates before confirmation, by their mean cost; the baseline is none of them."""
    costs: dict[str, list[float]] = {}
    candidates: dict[str, Candidate] = {}
    bad: Counter[str] = Counter()
    for trial in trials:
        if trial.phase is StudyPhase.CONFIRM or not trial.state.is_finished:
            continue
        key = trial.counts_for.fingerprint
        if trial.is_lost:
            continue
        if trial.verdict is None or not trial.verdict.feasible or trial.cost is None:
            bad[key] += 1
            continue
        candidates[key] = trial.counts_for
        costs.setdefault(key, []).append(spec.objective.cost(trial.cost))
    base = {t.counts_for.fingerprint for t in trials if t.phase is StudyPhase.GATE}
    # One flaky launch is forgiven where another went well: the confirmation's own launches decide.
    able = [key for key in costs if key not in base and bad[key] <= len(costs[key])]
    able.sort(key=lambda key: (statistics.fmean(costs[key]), key))
    return [candidates[key] for key in able[: spec.confirmation.finalists]]


def _confirm(spec: StudySpec, space: SearchSpace, trials: Sequence[Trial], now: datetime) -> Step:
    chosen = finalists(spec, trials)
    if not chosen:
        return Finish(state=StudyState.DONE, finding="not proven: no candidate but the baseline met the limits")
    done = [t for t in trials if t.phase is StudyPhase.CONFIRM and not t.is_lost]
    late = active_time_s(trials, now) >= spec.budget.wall_time_s
    if len(trials) < spec.budget.trials and not late:
        entries = [(BASELINE, space.complete({})), *((f"finalist-{i + 1}", c.values) for i, c in enumerate(chosen))]
        for turn in range(spec.confirmation.rounds):
            # ABBA: every second round runs backwards, so that a slow drift of the host favours nobody.
            for label, values in entries if turn % 2 == 0 else reversed(entries):
                if sum(t.label == label for t in done) <= turn:
                    return Launch(phase=StudyPhase.CONFIRM, label=label, values=dict(values))
    if any(not t.state.is_finished for t in done):
        return Wait()
    return Finish(state=StudyState.DONE, finding=conclude(spec, trials).finding)
