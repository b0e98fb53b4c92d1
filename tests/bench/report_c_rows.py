"""Field report C's complete run on the virtual endpoint: prefill and decode apart, 128K tokens in, 1K out.

192 requests, 2 a second, at most 48 in flight. The report counts 24,972,134 input tokens, of them 22,788,096 cached:
130,063 and 118,688 a request, a little more than prefix and question of its command line (117,965 + 9,216).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from autotune.domain.deployment import Deployment, facts
from autotune.domain.instance import instantiate
from autotune.domain.job import TrialJob
from autotune.domain.launch_plan import render
from autotune.domain.measurement import LevelMeasurement
from autotune.domain.workload import Arrivals, LoadLevel, Workload
from search_spaces.catalog import SpaceCatalog
from tests.bench.published import Kind, Row
from tests.bench.quiet_template import QuietTemplates
from workers.attempt_files import AttemptFiles
from workers.simulator.virtual.trial import run_trial

REQUESTS = 192
LEVEL = LoadLevel(concurrency=48, requests=REQUESTS, rate_per_s=2, arrivals=Arrivals.CONSTANT)
WORKLOAD = Workload(
    prompt_tokens=130_063,
    shared_prefix_tokens=118_688,
    output_tokens=1024,
    levels=(LEVEL,),
    warmup_requests=16,
)

# The report speaks of 8 requests a rank at 64 running ones: eight copies of attention in each role.
ATTENTION = {
    f"{role}_{knob}": value
    for role in ("prefill", "decode")
    for knob, value in {"dp_size": 8, "enable_dp_attention": True}.items()
}


def measure(recipe: str) -> LevelMeasurement:
    """The run under one of the report's recipes. Raises AssertionError when it fails."""
    whole = SpaceCatalog().space("sglang-ascend-950dt-pd")
    space = instantiate(whole, whole.stack, include=[knob.name for knob in whole.knobs]).space
    deployment = Deployment(
        template="simulated-950dt-pd",
        model="DeepSeek-MoE",
        devices=16,
        tensor_parallel=8,
        max_model_len=163_840,
        model_facts={
            "hidden_size": 4096,
            "experts": 256,
            "experts_per_token": 6,
            "attention_heads": 64,
            "draft_model": False,
        },
    )
    given = facts(deployment, WORKLOAD)
    values = next(r.values for r in space.recipes if r.name == recipe)
    plan = render(space, space.settle(space.complete({**values, **ATTENTION}), given).candidate, given)
    job = TrialJob(
        uid="report-c",
        study_id=1,
        trial_number=0,
        attempt=1,
        deployment=deployment,
        plan=plan,
        workload=WORKLOAD,
        seed=100,
    )
    with tempfile.TemporaryDirectory() as folder:
        files = AttemptFiles(Path(folder), job.uid)
        files.folder.mkdir(parents=True, exist_ok=True)
        outcome = run_trial(job, files, QuietTemplates({"AUTOTUNE_SIM_DATA": "business"}))
    assert outcome.measurement is not None, outcome.failure
    return outcome.measurement.levels[LEVEL.name]


def rows() -> list[Row]:
    """Every figure of the complete run."""
    run = measure("report-c-tuned")
    assert run.ttft_ms is not None
    assert run.e2e_ms is not None
    assert run.tpot_ms is not None
    assert run.prompt_tokens_mean is not None
    assert run.uncached_tokens_mean is not None
    assert run.in_flight_mean is not None
    assert run.in_flight_peak is not None
    cached = (run.prompt_tokens_mean - run.uncached_tokens_mean) * run.sent
    supply = "2 requests/s x 1024 tokens"
    records = "the two records differ in concurrency (160, 48) and in cached share (88.6 %, 92.1 %): not comparable"
    return [
        _row("requests done", "", REQUESTS, run.sent - run.failed, "predicted"),
        _row("input tokens", "", 24_972_134, run.prompt_tokens_mean * run.sent, "fitted", "given by the load"),
        _row("cached tokens", "", 22_788_096, cached, "predicted"),
        _row("output", "tok/s", 1782.61, run.output_tok_s, "predicted"),
        _row("mean TTFT", "s", 12.04, run.ttft_ms.mean / 1e3),
        _row("mean E2E", "s", 15.67, run.e2e_ms.mean / 1e3),
        _row("TPOT", "ms", 3.55, run.tpot_ms.mean),
        _row("in flight, mean", "", 27.28, run.in_flight_mean, "predicted"),
        _row("in flight, peak", "", 39, run.in_flight_peak, "predicted"),
        _row("share of the supply", "%", 87.0, run.output_tok_s / (2 * 1024) * 100, "predicted", supply),
        _row("early record", "tok/s", 750, run.output_tok_s, "listed", records),
        _row("tuned record", "tok/s", 1626, run.output_tok_s, "listed", records),
    ]


def _row(name: str, unit: str, published: float, simulated: float, kind: Kind = "fitted", note: str = "") -> Row:
    return Row("C", f"complete run: {name}", unit, published, simulated, kind, note)
