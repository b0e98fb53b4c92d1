"""Small valid values for every test. Each function takes changes by keyword; the rest has a default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.domain.candidate import Candidate
from autotune.domain.deployment import Deployment, facts
from autotune.domain.failure import Failure, FailureClass, Phase
from autotune.domain.job import LaunchedRole, Provenance, TrialJob, TrialOutcome
from autotune.domain.knobs import SERVER, ChoiceKind, EnvVar, Flag, IntegerKind, JsonPath, Knob, KnobValue
from autotune.domain.launch_plan import render
from autotune.domain.measurement import LevelMeasurement, Measurement, Quantiles, Trust
from autotune.domain.objective import Verdict, judge
from autotune.domain.space import NamedCandidate, Rule, SearchSpace, Severity
from autotune.domain.study import Budget, Confirmation, StudySpec
from autotune.domain.trial import NewTrial, StudyPhase
from autotune.domain.workload import LoadLevel, Workload

LEVELS = ("c1", "c4", "c8")
BASELINE: Mapping[str, KnobValue] = {"max_num_seqs": 16}


def space(**changes: Any) -> SearchSpace:
    """Four knobs (env, env, flag, JSON), one warning rule, one recipe; the baseline sets only max_num_seqs."""
    fields: dict[str, Any] = {
        "name": "tiny",
        "engine": "vllm-ascend",
        "chip": "ascend-910c",
        "about": "A space for tests.",
        "knobs": (
            Knob(
                name="expansion_mode",
                about="Where collectives are unrolled.",
                type=ChoiceKind(values=("AIV", "AI_CPU")),
                unset=True,
                lands=EnvVar(name="HCCL_OP_EXPANSION_MODE"),
            ),
            Knob(
                name="buffer_mb",
                about="Size of the collective buffer.",
                type=IntegerKind(low=64, high=4096, log=True),
                unset=True,
                lands=EnvVar(name="HCCL_BUFFSIZE"),
            ),
            Knob(
                name="max_num_seqs",
                about="Largest batch.",
                type=IntegerKind(low=8, high=256),
                lands=Flag(flag="--max-num-seqs"),
            ),
            Knob(
                name="draft_length",
                about="Speculated tokens.",
                type=IntegerKind(low=1, high=8),
                unset=True,
                lands=JsonPath(flag="--speculative-config", path="num_speculative_tokens"),
            ),
        ),
        "rules": (
            Rule(
                name="batch-covers-load",
                severity=Severity.WARN,
                require="knobs.max_num_seqs >= facts.max_concurrency",
                why="requests would queue",
                mend="raise max_num_seqs",
            ),
        ),
        "baseline": dict(BASELINE),
        "recipes": (NamedCandidate(name="aiv", values={"expansion_mode": "AIV", "max_num_seqs": 16}),),
    }
    return SearchSpace(**{**fields, **changes})


def workload(levels: Sequence[str] = LEVELS, **changes: Any) -> Workload:
    """Sixteen requests a level; `levels` by name, `c4` for four streams, `c4r2` for at most four at 2/s."""
    fields: dict[str, Any] = {
        "prompt_tokens": 64,
        "output_tokens": 16,
        "levels": tuple(load_level(name) for name in levels),
        "warmup_requests": 1,
        "request_timeout_s": 10.0,
    }
    return Workload(**{**fields, **changes})


def load_level(name: str, requests: int = 16) -> LoadLevel:
    """The level of that name."""
    concurrency, _, rate = name.removeprefix("c").partition("r")
    return LoadLevel(concurrency=int(concurrency), requests=requests, rate_per_s=float(rate) if rate else None)


def deployment(**changes: Any) -> Deployment:
    """One simulated device."""
    return Deployment(**{"template": "simulated-910c", "model": "tiny-model", **changes})


def study_spec(**changes: Any) -> StudySpec:
    """Twenty launches: two for the gate, four for the confirmation, fourteen left for recipes and search."""
    fields: dict[str, Any] = {
        "name": "small-study",
        "space": "tiny",
        "deployment": deployment(),
        "workload": workload(),
        "sla": ("ttft_p99_ms <= 400",),
        "budget": Budget(trials=20, wall_time_s=3600),
        "gate_launches": 2,
        "confirmation": Confirmation(finalists=1, rounds=2),
    }
    return StudySpec(**{**fields, **changes})


def candidate(**values: KnobValue) -> Candidate:
    """The baseline of `space()` with these values on top."""
    return Candidate(values={**BASELINE, **values})


def new_trial(
    phase: StudyPhase = StudyPhase.SEARCH,
    label: str = "search",
    values: Mapping[str, KnobValue] | None = None,
    **changes: Any,
) -> NewTrial:
    """A trial of `space()`; `values` go on top of the baseline, in the proposal and in the candidate."""
    chosen = candidate(**(values or {}))
    fields: dict[str, Any] = {
        "phase": phase,
        "label": label,
        "proposal": dict(chosen.values),
        "candidate": chosen,
        "plan": render(space(), changes.get("candidate", chosen), facts(deployment(), workload())),
    }
    return NewTrial(**{**fields, **changes})


def quantiles(value: float, n: int = 16) -> Quantiles:
    """A narrow distribution around the value."""
    return Quantiles(n=n, mean=value, p50=value, p90=value * 1.05, p95=value * 1.08, p99=value * 1.1)


def level_measurement(level: str, tpot_ms: float = 10.0, ttft_ms: float = 100.0, **changes: Any) -> LevelMeasurement:
    """One level whose figures fit together for 16 output tokens."""
    concurrency = load_level(level).concurrency
    e2e_ms = ttft_ms + 15 * tpot_ms
    fields: dict[str, Any] = {
        "level": level,
        "concurrency": concurrency,
        "sent": 16,
        "failed": 0,
        "error_rate": 0.0,
        "duration_s": 16 / concurrency * e2e_ms / 1000,
        "tpot_ms": quantiles(tpot_ms),
        "ttft_ms": quantiles(ttft_ms),
        "e2e_ms": quantiles(e2e_ms),
        "output_tok_s": concurrency * 16 * 1000 / e2e_ms,
        "requests_per_s": concurrency * 1000 / e2e_ms,
        "prompt_tokens_mean": 64.0,
        "output_tokens_mean": 16.0,
        "client_lag_p99_ms": 0.1,
        "stamp": "kernel",
        "ttfo_ms": quantiles(ttft_ms),
        "decode_tpot_ms": quantiles(tpot_ms),
        "itl_ms": quantiles(tpot_ms),
        "steady_output_tok_s": concurrency * 16 * 1000 / e2e_ms,
        "goodput_per_s": concurrency * 1000 / e2e_ms,
        "slo_attainment": 1.0,
    }
    return LevelMeasurement(**{**fields, **changes})


def measurement(
    tpot_ms: float | Mapping[str, float] = 10.0,
    ttft_ms: float | Mapping[str, float] = 100.0,
    levels: Sequence[str] = LEVELS,
    trust: Trust = Trust.OK,
    trust_reasons: Sequence[str] = (),
    uncached_tokens: float | None = None,
) -> Measurement:
    """The same times at every level, or a mapping of level to time."""
    return Measurement(
        levels={
            name: level_measurement(
                name,
                tpot_ms=tpot_ms[name] if isinstance(tpot_ms, Mapping) else tpot_ms,
                ttft_ms=ttft_ms[name] if isinstance(ttft_ms, Mapping) else ttft_ms,
                uncached_tokens_mean=uncached_tokens,
            )
            for name in levels
        },
        trust=trust,
        trust_reasons=tuple(trust_reasons),
    )


def verdict(measured: Measurement | None = None, spec: StudySpec | None = None) -> Verdict:
    """How `study_spec()` judges the measurement."""
    spec = spec or study_spec()
    return judge(measured or measurement(), spec.objective, spec.sla)


def failure(
    failure_class: FailureClass = FailureClass.OUT_OF_MEMORY,
    phase: Phase = Phase.READY,
    summary: str = "the device ran out of memory",
    **changes: Any,
) -> Failure:
    """A failure that blames the candidate, unless the class says otherwise."""
    return Failure(phase=phase, failure_class=failure_class, summary=summary, **changes)


def provenance(**changes: Any) -> Provenance:
    """A simulated host that ran one server."""
    fields: dict[str, Any] = {
        "host": "host-a",
        "version": "0.1.0",
        "template": "simulated-910c",
        "simulated": True,
        "roles": {SERVER: LaunchedRole(argv=("serve", "--host", "{host}", "--port", "{port}"), env={})},
    }
    return Provenance(**{**fields, **changes})


def outcome(
    job_or_uid: TrialJob | str,
    measurement: Measurement | None = None,
    failure: Failure | None = None,
    tpot_ms: float | Mapping[str, float] = 10.0,
    ttft_ms: float | Mapping[str, float] = 100.0,
    **changes: Any,
) -> TrialOutcome:
    """A measurement made of `tpot_ms` and `ttft_ms`, unless a measurement or a failure is given."""
    if measurement is None and failure is None:
        measurement = _measurement(tpot_ms, ttft_ms)
    fields: dict[str, Any] = {
        "uid": job_or_uid if isinstance(job_or_uid, str) else job_or_uid.uid,
        "measurement": measurement,
        "failure": failure,
        "provenance": provenance(),
        "durations_s": {"launch": 0.5, "load": 1.5},
    }
    return TrialOutcome(**{**fields, **changes})


_measurement = measurement  # `outcome` takes an argument of that name


def job(uid: str = "s1-t0-a1", study_id: int = 1, trial_number: int = 0, attempt: int = 1, **changes: Any) -> TrialJob:
    """The first attempt of the first trial of the first study."""
    fields: dict[str, Any] = {
        "uid": uid,
        "study_id": study_id,
        "trial_number": trial_number,
        "attempt": attempt,
        "deployment": deployment(),
        "plan": new_trial().plan,
        "workload": workload(),
        "seed": 0,
    }
    return TrialJob(**{**fields, **changes})
