"""What to improve, which limits must hold, and the judgement of one measurement."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field, field_validator, model_serializer, model_validator

from autotune.domain.conditions import Conditions
from autotune.domain.goodput import FIGURES, Goal
from autotune.domain.measurement import LevelMeasurement, Measurement, Trust
from autotune.domain.value import Value
from autotune.domain.workload import LEVEL_NAME

NOT_COMPARABLE = "not comparable"  # how a reason begins that tells of other conditions than the baseline's
_QUANTILES = {"": "mean", "_p50": "p50", "_p90": "p90", "_p95": "p95", "_p99": "p99"}
_TIMES = ("tpot", "ttft", "e2e", "ttft_sched", "e2e_sched", "ttfo", "decode_tpot", "itl")
METRICS: tuple[str, ...] = (
    *(f"{base}{q}_ms" for base in _TIMES for q in _QUANTILES),
    "output_tok_s",
    "steady_output_tok_s",
    "requests_per_s",
    "goodput_per_s",
    "slo_attainment",
    "error_rate",
)
_TIME = re.compile(rf"({'|'.join(_TIMES)})(|_p50|_p90|_p95|_p99)_ms")
_GOAL = re.compile(rf"({'|'.join(figure.removesuffix('_ms') for figure in FIGURES)})(|_p50|_p90|_p95|_p99)_ms")
"""Every metric that an SLA may name. `tpot_ms` is the mean over requests, `tpot_p99_ms` a percentile."""


def metric(level: LevelMeasurement, name: str) -> float | None:
    """The value of a metric at one level; None where it is undefined. Raises KeyError for an unknown name.

    In a closed loop a request is due when it is sent, so that `ttft_sched_ms` is `ttft_ms` there.
    """
    match = _TIME.fullmatch(name)
    if match:
        base = match[1] if level.rate_per_s is not None else match[1].removesuffix("_sched")
        quantiles = getattr(level, f"{base}_ms")
        value = None if quantiles is None else getattr(quantiles, _QUANTILES[match[2]])
    elif name in METRICS:
        value = getattr(level, name)
    else:
        raise KeyError(name)
    return None if value is None else float(value)


def _or_as_text(schema: dict[str, Any]) -> None:
    """What is read may be text or an object; what is written is text."""
    if schema.get("type") == "object":
        by_parts = dict(schema)
        schema.clear()
        schema["anyOf"] = [{"type": "string", "examples": ["ttft_p99_ms <= 400", "tpot_ms <= 12 at c8"]}, by_parts]


class Limit(Value):
    """One SLA limit, written `ttft_p99_ms <= 400` or `tpot_ms <= 12 at c8`; without a level it holds at all."""

    model_config = ConfigDict(json_schema_extra=_or_as_text)

    metric: str
    op: str = Field(pattern=r"^(<=|>=|==|<|>)$")
    bound: float
    level: str | None = Field(default=None, pattern=rf"^{LEVEL_NAME}$")

    @field_validator("metric")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in METRICS:
            raise ValueError(f"unknown metric {name}; allowed: {', '.join(METRICS)}")
        return name

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Raises ValueError with the allowed metrics or the form."""
        form = rf"\s*(\w+)\s*(<=|>=|==|<|>)\s*([-+0-9.eE]+)\s*(?:at\s+({LEVEL_NAME}))?\s*"
        match = re.fullmatch(form, text)
        if not match:
            raise ValueError(f"{text!r} is not of the form 'metric <= number' or 'metric <= number at c8'")
        if match[1] not in METRICS:
            raise ValueError(f"unknown metric {match[1]}; allowed: {', '.join(METRICS)}")
        try:
            bound = float(match[3])
        except ValueError:
            raise ValueError(f"{match[3]!r} is not a number") from None
        return cls(metric=match[1], op=match[2], bound=bound, level=match[4])

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return dict(cls.parse(value)) if isinstance(value, str) else value

    @model_serializer
    def _to_text(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.metric} {self.op} {self.bound:.12g}" + (f" at {self.level}" if self.level else "")

    def excess(self, value: float) -> float:
        """How far beyond the bound, relative to it; at most 0 where the limit holds."""
        scale = abs(self.bound) or 1.0
        if self.op == "==":
            return abs(value - self.bound) / scale
        beyond = value - self.bound if self.op in ("<=", "<") else self.bound - value
        if beyond == 0 and self.op in ("<", ">"):
            return math.ulp(scale) / scale
        return beyond / scale


def goals(sla: Sequence[Limit], level: str) -> tuple[Goal, ...]:
    """What each request of the level has to meet for goodput: the upper limits on times, whatever their percentile."""
    found: list[Goal] = []
    for limit in sla:
        match = _GOAL.fullmatch(limit.metric)
        if match and limit.op in ("<=", "<", "==") and limit.level in (None, level):
            found.append(Goal(figure=f"{match[1]}_ms", most_ms=limit.bound))
    return tuple(found)


class ObjectiveMetric(StrEnum):
    """What a study may improve."""

    TPOT = "tpot_ms"
    DECODE_TPOT = "decode_tpot_ms"
    THROUGHPUT = "output_tok_s"
    STEADY_THROUGHPUT = "steady_output_tok_s"
    GOODPUT = "goodput_per_s"

    @property
    def maximise(self) -> bool:
        return self not in (ObjectiveMetric.TPOT, ObjectiveMetric.DECODE_TPOT)


class Objective(Value):
    """Weighted geometric mean of one metric over the load levels; a level without a weight counts 1."""

    metric: ObjectiveMetric = ObjectiveMetric.TPOT
    weights: dict[str, float] = Field(default_factory=dict)

    @field_validator("weights")
    @classmethod
    def _not_negative(cls, weights: dict[str, float]) -> dict[str, float]:
        if any(w < 0 for w in weights.values()):
            raise ValueError("weights must not be negative")
        return weights

    def value(self, measurement: Measurement) -> float | None:
        """The objective in its own unit; None where a level that counts has no value."""
        total = 0.0
        mass = 0.0
        for name, level in measurement.levels.items():
            weight = self.weights.get(name, 1.0)
            value = metric(level, self.metric)
            if weight == 0:
                continue
            if value is None or value <= 0:
                return None
            total += weight * math.log(value)
            mass += weight
        return math.exp(total / mass) if mass else None

    def cost(self, value: float) -> float:
        """On a log scale, lower is better: a difference of 0.01 is about 1 %."""
        return -math.log(value) if self.metric.maximise else math.log(value)

    def gain_pct(self, baseline: float, value: float) -> float:
        """How much better than the baseline in percent of it; negative is worse."""
        change = (value - baseline) / baseline * 100
        return change if self.metric.maximise else -change


class Margin(Value):
    """One limit at one level: `excess` above 0 breaks it."""

    limit: str
    level: str
    value: float | None
    excess: float


class Verdict(Value):
    """The judgement of one measurement. Infeasible comes with reasons; `objective` may still be known.

    Not `comparable`: it was measured under other conditions than the baseline, so it is infeasible and has no
    objective, which would only invite a comparison. Neither has a measurement that is not trusted.
    """

    feasible: bool
    objective: float | None
    comparable: bool = True
    margins: tuple[Margin, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def worst_excess(self) -> float:
        return max((m.excess for m in self.margins), default=0.0)


def judge(
    measurement: Measurement, objective: Objective, sla: Sequence[Limit], reference: Conditions | None = None
) -> Verdict:
    """Better numbers never turn feasible into infeasible; an undefined metric breaks its limit.

    `reference`: the conditions of the study's baseline, where they are known.
    """
    margins: list[Margin] = []
    for limit in sla:
        for name, level in measurement.levels.items():
            if limit.level in (None, name):
                value = metric(level, limit.metric)
                excess = 1.0 if value is None else limit.excess(value)
                margins.append(Margin(limit=str(limit), level=name, value=value, excess=excess))
    reasons = [
        f"{m.limit} is broken at {m.level}: {'undefined' if m.value is None else f'{m.value:.4g}'}"
        for m in margins
        if m.excess > 0
    ]
    value = objective.value(measurement)
    if value is None:
        reasons.append(f"{objective.metric} is undefined")
    if measurement.trust is Trust.INVALID:
        reasons += [f"not trusted: {reason}" for reason in measurement.trust_reasons]
    others = () if reference is None else reference.differences(measurement)
    return Verdict(
        feasible=not reasons and not others,
        objective=None if others or measurement.trust is Trust.INVALID else value,
        comparable=not others,
        margins=tuple(margins),
        reasons=(*(f"{NOT_COMPARABLE}: {other}" for other in others), *reasons),
    )
