"""The claim of a study: from the confirmation's launches alone, with intervals, or "not proven".

The lowest of many observations over-claims by 1.4 to 3.0 % and is infeasible in up to 10 % of cases. So the
best few are launched afresh, interleaved with the baseline. On the log of a metric a gain is a difference of
means; its spread is pooled over the groups compared and the gate's launches of the baseline, and its
interval uses t quantiles, which stay honest for three launches.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from autotune.domain.measurement import Measurement
from autotune.domain.objective import metric
from autotune.domain.recipe import Comparison, Evidence, Interval
from autotune.domain.study import StudySpec
from autotune.domain.trial import StudyPhase, Trial, TrialState
from autotune.domain.value import Value
from autotune.engine.comparability import is_comparable

BASELINE = "baseline"
CONFIDENCE = 0.95

Reading = Callable[[Measurement], float | None]


class Conclusion(Value):
    """What the confirmation shows. `winner` is None where nothing is proven."""

    baseline: Evidence
    contenders: tuple[Comparison, ...]
    winner: Comparison | None
    finding: str


def conclude(spec: StudySpec, trials: Sequence[Trial]) -> Conclusion:
    """Judge the finalists against the baseline. Needs at least one confirmation trial of the baseline."""
    # What was lost to the infrastructure is no launch of its configuration: another one is made in its place.
    done = [
        t for t in trials if t.phase is StudyPhase.CONFIRM and t.state is not TrialState.CANCELLED and not t.is_lost
    ]
    groups: dict[str, list[Trial]] = {BASELINE: []}
    for trial in done:
        groups.setdefault(trial.label, []).append(trial)
    gate = [t for t in trials if t.phase is StudyPhase.GATE and t.state is TrialState.MEASURED]
    base = groups.pop(BASELINE)
    # Several finalists are several chances to be lucky: Bonferroni keeps the error of the claim at 5 %.
    level = 1 - (1 - CONFIDENCE) / max(len(groups), 1)
    sides = _Sides(spec=spec, base=base, gate=gate, level=level)
    contenders = tuple(_compare(sides, label, members) for label, members in sorted(groups.items()))
    proven = [c for c in contenders if c.proven and c.gain_pct is not None]
    winner = max(proven, key=lambda c: c.gain_pct.mean if c.gain_pct else -math.inf, default=None)
    return Conclusion(
        baseline=evidence(BASELINE, base or gate, spec),
        contenders=contenders,
        winner=winner,
        finding=_finding(spec, winner, contenders),
    )


def evidence(label: str, trials: Sequence[Trial], spec: StudySpec) -> Evidence:
    """What the launches of one configuration showed; intervals are those of its own mean."""
    good = [t for t in trials if t.measurement is not None]
    names = [level.name for level in spec.workload.levels]

    def by_level(name_of_metric: str) -> dict[str, Interval]:
        found = {n: _mean([_level_reading(n, name_of_metric)(m) for m in _measurements(good)]) for n in names}
        return {n: interval for n, interval in found.items() if interval is not None}

    return Evidence(
        label=label,
        candidate=trials[0].candidate,
        trials=tuple(t.number for t in trials),
        failed_trials=tuple(t.number for t in trials if t.state is TrialState.FAILED),
        infeasible_trials=tuple(t.number for t in good if t.verdict is None or not t.verdict.feasible),
        objective=_mean([spec.objective.value(m) for m in _measurements(good)]),
        tpot_ms=by_level("tpot_ms"),
        ttft_ms=by_level("ttft_ms"),
        output_tok_s=by_level("output_tok_s"),
    )


def _measurements(trials: Sequence[Trial]) -> list[Measurement]:
    return [t.measurement for t in trials if t.measurement is not None and is_comparable(t)]


def _level_reading(level: str, name: str) -> Reading:
    return lambda m: metric(m.levels[level], name) if level in m.levels else None


@dataclass(frozen=True)
class _Sides:
    """What every finalist is compared with, and how sure a claim has to be."""

    spec: StudySpec
    base: Sequence[Trial]
    gate: Sequence[Trial]
    level: float


def _compare(sides: _Sides, label: str, members: Sequence[Trial]) -> Comparison:
    spec = sides.spec
    shown = evidence(label, members, spec)
    gain = _gain(sides, spec.objective.value, members)
    name = str(spec.objective.metric)
    by_level = {
        load.name: interval
        for load in spec.workload.levels
        if (interval := _gain(sides, _level_reading(load.name, name), members))
    }
    strange = sum(not is_comparable(t) for t in members)
    if shown.failed_trials:
        reason = f"{len(shown.failed_trials)} of {shown.launches} launches failed"
    elif strange:
        reason = f"{strange} of {shown.launches} launches can't be compared with the baseline"
    elif shown.infeasible_trials:
        reason = f"{len(shown.infeasible_trials)} of {shown.launches} launches broke a limit"
    elif shown.launches < spec.confirmation.rounds:
        reason = f"only {shown.launches} of {spec.confirmation.rounds} launches were made"
    elif gain is None:
        reason = "too few launches that can be compared for an interval"
    elif gain.low <= 0:
        reason = f"the interval of the gain, {gain.low:.1f} to {gain.high:.1f} %, reaches 0"
    else:
        reason = ""
    return Comparison(
        evidence=shown,
        gain_pct=gain,
        gain_pct_by_level=by_level,
        proven=not reason,
        reason=reason or f"{shown.launches} launches met every limit and the interval of the gain is above 0",
    )


def _logs(reading: Reading, trials: Sequence[Trial]) -> list[float]:
    values = [reading(m) for m in _measurements(trials)]
    return [math.log(v) for v in values if v is not None and v > 0]


def _gain(sides: _Sides, reading: Reading, members: Sequence[Trial]) -> Interval | None:
    """Gain in percent of the baseline with its interval; None with fewer than two launches on a side."""
    mine, theirs, before = (_logs(reading, group) for group in (members, sides.base, sides.gate))
    if len(mine) < 2 or len(theirs) < 2:
        return None
    groups = [g for g in (mine, theirs, before) if len(g) > 1]
    freedom = sum(len(g) - 1 for g in groups)
    variance = sum((len(g) - 1) * statistics.variance(g) for g in groups) / freedom
    half = _t(sides.level, freedom) * math.sqrt(variance * (1 / len(mine) + 1 / len(theirs)))
    change = statistics.fmean(mine) - statistics.fmean(theirs)
    sign = 1 if sides.spec.objective.metric.maximise else -1
    ends = sorted(sign * math.expm1(change + d) * 100 for d in (-half, half))
    return Interval(mean=sign * math.expm1(change) * 100, low=ends[0], high=ends[1], n=len(mine))


def _mean(values: Sequence[float | None]) -> Interval | None:
    known = [v for v in values if v is not None]
    if not known:
        return None
    mean = statistics.fmean(known)
    half = 0.0 if len(known) < 2 else _t(CONFIDENCE, len(known) - 1) * statistics.stdev(known) / math.sqrt(len(known))
    return Interval(mean=mean, low=mean - half, high=mean + half, n=len(known))


def _t(level: float, freedom: int) -> float:
    """The two-sided t quantile."""
    return float(stdtrit(freedom, (1 + level) / 2))


def _finding(spec: StudySpec, winner: Comparison | None, contenders: Sequence[Comparison]) -> str:
    if winner is not None and winner.gain_pct is not None:
        gain = winner.gain_pct
        return (
            f"confirmed: {winner.evidence.label} is {gain.mean:.1f} % better than the baseline in "
            f"{spec.objective.metric} ({gain.low:.1f} to {gain.high:.1f} %, {winner.evidence.launches} launches)"
        )
    nearest = max(contenders, key=lambda c: c.gain_pct.mean if c.gain_pct else -math.inf, default=None)
    why = f"; {nearest.evidence.label}: {nearest.reason}" if nearest is not None else ""
    return f"not proven{why}"
