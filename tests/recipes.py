"""Recipes for tests: one that is confirmed and one that is not proven."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from autotune.domain.job import LaunchedRole
from autotune.domain.recipe import Comparison, Evidence, Interval, Recipe
from tests import builders


def interval(mean: float, spread: float = 1.0, n: int = 3) -> Interval:
    """`mean` plus and minus `spread`."""
    return Interval(mean=mean, low=mean - spread, high=mean + spread, n=n)


def evidence(label: str, trials: tuple[int, ...], scale: float = 1.0, **values: Any) -> Evidence:
    """TPOT of 8, 9 and 10 ms times `scale`."""
    return Evidence(
        label=label,
        candidate=builders.candidate(**values),
        trials=trials,
        objective=interval(9.0 * scale),
        tpot_ms={"c1": interval(8.0 * scale), "c4": interval(9.0 * scale), "c8": interval(10.0 * scale)},
        ttft_ms={"c1": interval(50.0), "c4": interval(60.0), "c8": interval(70.0)},
    )


def recipe(**changes: Any) -> Recipe:
    """Study 3 has found settings that are 20 % better."""
    baseline = evidence("baseline", (20, 23, 26))
    best = evidence("search", (21, 24, 27), 0.8, expansion_mode="AIV", draft_length=2)
    proof = Comparison(
        evidence=best,
        gain_pct=interval(20.0),
        gain_pct_by_level={"c1": interval(21.0), "c4": interval(20.0), "c8": interval(19.5)},
        proven=True,
        reason="better at every level",
    )
    spec = builders.study_spec()
    fields: dict[str, Any] = {
        "study_id": 3,
        "study_name": "report-a",
        "space": "tiny",
        "engine": "vllm-ascend",
        "chip": "ascend-910c",
        "confirmed": True,
        "finding": "20.0 % better than the baseline",
        "confidence": 0.95,
        "workload": spec.workload,
        "objective": spec.objective,
        "sla": spec.sla,
        "baseline": baseline,
        "best": best,
        "contenders": (proof,),
        "changes": baseline.candidate.difference(best.candidate),
        "roles": {"server": LaunchedRole(argv=("/opt/serve", "--port", "{port}"), env={"HCCL_BUFFSIZE": "200"})},
        "baseline_roles": {"server": LaunchedRole(argv=("/opt/serve", "--port", "{port}", "--base"), env={})},
        "simulated": True,
        "version": "0.1.0",
        "seed": 7,
        "created_at": datetime(2026, 1, 2, tzinfo=UTC),
    }
    return Recipe(**{**fields, **changes})


def not_proven(**changes: Any) -> Recipe:
    """Study 3 keeps its baseline."""
    known = recipe()
    refused = known.contenders[0].model_copy(update={"proven": False, "reason": "the interval holds 0"})
    fields: dict[str, Any] = {
        "confirmed": False,
        "finding": "no candidate is proven to be better",
        "best": known.baseline,
        "contenders": (refused,),
        "changes": {},
        "roles": known.baseline_roles,
    }
    return recipe(**{**fields, **changes})
