"""Field report A on the virtual endpoint: from knobs through the rendered launch to what a client measures."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.domain.deployment import Deployment, facts
from autotune.domain.instance import instantiate
from autotune.domain.job import TrialJob
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import render
from autotune.domain.measurement import LevelMeasurement, Quantiles
from autotune.domain.space import SearchSpace
from autotune.domain.workload import LoadLevel, Workload
from search_spaces.catalog import SpaceCatalog
from tests.bench.published import Kind, Row
from tests.bench.quiet_template import QuietTemplates
from workers.attempt_files import AttemptFiles
from workers.simulator.virtual.trial import run_trial

SPARSE_0_22 = "Qwen3.5-35B-A3B"
SPARSE_0_23_CANN_9_0 = "Qwen3.5-35B-A3B-v0.23-cann9.0"
SPARSE_0_23 = "Qwen3.5-35B-A3B-v0.23"
REQUESTS = {1: 40, 4: 80, 8: 80}  # by concurrency; the report's own protocol
SIZES_WITHOUT_DRAFTS = '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,2,4,8]}'


@dataclass(frozen=True, slots=True)
class Launch:
    """One configuration: knobs over the baseline, words that are appended to the rendered command line."""

    model: str
    values: Mapping[str, KnobValue] = field(default_factory=dict)
    data_set: str = "random"
    words: tuple[str, ...] = ()
    noise: bool = False


@functools.cache
def space() -> SearchSpace:
    """Every knob, module constants too."""
    whole = SpaceCatalog().space("vllm-ascend-910c")
    return instantiate(whole, whole.stack, include=[knob.name for knob in whole.knobs]).space


@functools.cache
def recipe(name: str) -> Mapping[str, KnobValue]:
    return next(recipe.values for recipe in space().recipes if recipe.name == name)


def measure(launch: Launch, requests: Mapping[int, int] = REQUESTS) -> dict[int, LevelMeasurement]:
    """All levels of one launch under report A's load, without noise. Raises AssertionError when it fails.

    `requests` of each concurrency.
    """
    workload = Workload(
        prompt_tokens=1024,
        output_tokens=512,
        levels=tuple(LoadLevel(concurrency=c, requests=n) for c, n in requests.items()),
        warmup_requests=20,
    )
    deployment = Deployment(
        template="simulated-910c", model=launch.model, devices=2, tensor_parallel=2, max_model_len=4096
    )
    given = facts(deployment, workload)
    plan = render(space(), space().settle(space().complete(launch.values), given).candidate, given)
    server = plan.roles["server"]
    server = server.model_copy(update={"argv": (*server.argv, *launch.words)})
    job = TrialJob(
        uid="report-a",
        study_id=1,
        trial_number=0,
        attempt=1,
        deployment=deployment,
        plan=plan.model_copy(update={"roles": {"server": server}}),
        workload=workload,
        seed=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        files = AttemptFiles(Path(folder), job.uid)
        files.folder.mkdir(parents=True, exist_ok=True)
        outcome = run_trial(job, files, QuietTemplates(_settings(launch)))
    assert outcome.measurement is not None, outcome.failure
    return {c: outcome.measurement.levels[f"c{c}"] for c in requests}


def _settings(launch: Launch) -> dict[str, str]:
    seed = {"AUTOTUNE_SIM_SEED": "1"} if launch.noise else {}
    return {"AUTOTUNE_SIM_DATA": launch.data_set, **seed}


def rows() -> list[Row]:
    """Every figure of the report that the model claims, and those that it does not."""
    return [*_ladder(), *_host_allocator(), *_prefetch(), *_tail(), *_speculation(), *_other_models()]


def _row(name: str, published: float, simulated: float, kind: Kind = "fitted", note: str = "", unit: str = "ms") -> Row:
    return Row("A", name, unit, published, simulated, kind, note)


def tpot(launch: Launch, concurrency: int = 1) -> float:
    return _tpot(launch, concurrency).mean


def _tpot(launch: Launch, concurrency: int) -> Quantiles:
    key = repr((launch.model, sorted(launch.values.items()), launch.data_set, launch.words))
    if key not in _MEASURED:
        _MEASURED[key] = measure(launch)
    found = _MEASURED[key][concurrency].tpot_ms
    assert found is not None
    return found


_MEASURED: dict[str, dict[int, LevelMeasurement]] = {}


def _ladder() -> list[Row]:
    baseline = Launch(SPARSE_0_22)
    steps = [
        ("engine upgrade c1", Launch(SPARSE_0_23_CANN_9_0), 12.0),
        ("HCCL on vector cores c1", Launch(SPARSE_0_23_CANN_9_0, recipe("report-a-aiv")), 11.2),
        ("static kernels c1", Launch(SPARSE_0_23_CANN_9_0, recipe("report-a-aiv-static")), 9.1),
        ("device allocator c1", Launch(SPARSE_0_23_CANN_9_0, recipe("report-a-allocator")), 8.8),
        ("CANN upgrade c1", Launch(SPARSE_0_23, recipe("report-a-allocator")), 8.5),
        ("all without speculation c1", Launch(SPARSE_0_23, recipe("report-a-final-without-mtp")), 7.8),
    ]
    found = [_row(f"baseline c{c}", p, tpot(baseline, c)) for c, p in ((1, 14.22), (4, 17.56), (8, 21.17))]
    return found + [_row(name, published, tpot(launch)) for name, launch, published in steps]


def _host_allocator() -> list[Row]:
    """Measured on the stack and set of the row before it in the ladder, as the report did."""
    before = Launch(SPARSE_0_23, recipe("report-a-allocator"))
    after = Launch(SPARSE_0_23, {**recipe("report-a-allocator"), "host_allocator": "jemalloc"})
    published = {1: 8.4}
    found = [_row("jemalloc c1", published[1], tpot(after))]
    for c, gain in ((1, 0.1), (4, 0.3), (8, 0.6)):
        found.append(_row(f"jemalloc gain c{c}", gain, tpot(before, c) - tpot(after, c)))
    return found


def _prefetch() -> list[Row]:
    before = Launch(SPARSE_0_23, recipe("report-a-operator-cache"))
    inert = Launch(SPARSE_0_23, {**before.values, "weight_prefetch": True})
    fires = Launch(SPARSE_0_23, {**inert.values, "moe_prefetch_token_threshold": 1})
    gains = {c: tpot(before, c) - tpot(fires, c) for c in (1, 4)}
    rounded = "published to one digit: 0.1 stands for 0.05 to 0.15"
    return [
        _row("weight prefetch, threshold 1, c1", 8.3, tpot(fires)),
        _row("weight prefetch gain c1", 0.1, gains[1], "listed", rounded),
        _row("weight prefetch gain c4", 0.2, gains[4], "listed", rounded),
        _row("weight prefetch, threshold 96, c8: TPOT against none", tpot(before, 8), tpot(inert, 8), "predicted"),
    ]


def _tail() -> list[Row]:
    """Many requests instead of the report's 40: the 99th percentile of 40 is their maximum."""
    before = Launch(SPARSE_0_23, recipe("report-a-jemalloc"), noise=True)
    after = replace(before, values={**before.values, "aclnn_cache_limit": 100_000})
    p99 = []
    for launch in (before, after):
        found = measure(launch, {1: 1000, 4: 4, 8: 8})[1].tpot_ms
        assert found is not None
        p99.append(found.p99)
    note = "the report does not say at which step of its ladder; its tail is that of a whole service"
    return [
        _row("operator cache: gain at p99, c1", 0.2, p99[0] - p99[1], "listed", "published to one digit"),
        _row("operator cache: p99 before, c1", 9.1, p99[0], "listed", note),
        _row("operator cache: p99 after, c1", 8.9, p99[1], "listed", note),
    ]


def _speculation() -> list[Row]:
    final = recipe("report-a-final-with-mtp")
    found = [
        _row(f"MTP 4, business data c{c}", published, tpot(Launch(SPARSE_0_23, final, "business"), c))
        for c, published in ((1, 5.0), (4, 8.8), (8, 11.9))
    ]
    trap = Launch(SPARSE_0_23, final, words=("--compilation-config", SIZES_WITHOUT_DRAFTS))
    return [
        *found,
        _row("MTP 4, GSM8K c1", 4.2, tpot(Launch(SPARSE_0_23, final, "gsm8k"))),
        _row("MTP 4, sizes [5,20,40] c8", 10.4, tpot(Launch(SPARSE_0_23, final), 8)),
        _row("MTP 4, sizes [1,2,4,8] c8", 42.0, tpot(trap, 8)),
        _row("MTP 4, sizes [1,2,4,8] c4", 42.0, tpot(trap, 4), "predicted"),
    ]


def _other_models() -> list[Row]:
    small, dense, hybrid = Launch("Qwen3-8B"), Launch("Qwen3-32B"), Launch("Qwen3.6-27B")
    aiv, static = recipe("report-a-aiv"), {"static_kernel": True}
    final = Launch("Qwen3.6-27B-v0.23", recipe("report-a-final-with-mtp"), "business")
    return [
        _row("Qwen3-8B c1", 9.9, tpot(small)),
        _row("Qwen3-8B, vector cores c1", 9.25, tpot(Launch("Qwen3-8B", aiv)), "predicted"),
        _row("Qwen3-32B c1", 31.5, tpot(dense)),
        _row("Qwen3-32B, static kernels c1", 30.9, tpot(Launch("Qwen3-32B", static))),
        _row("Qwen3.6-27B before c1", 30.7, tpot(hybrid)),
        _row("Qwen3.6-27B after c1", 11.8, tpot(final)),
    ]
