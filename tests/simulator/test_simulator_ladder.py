"""The cost model against field report A: from knobs through the rendered launch to step times."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from autotune.domain.deployment import Deployment, facts
from autotune.domain.instance import instantiate
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import render
from autotune.domain.workload import LoadLevel, Workload
from search_spaces.catalog import SpaceCatalog
from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.system import System, load_system
from workers.simulator.vllm.configure import configure
from workers.simulator.vllm.flags import parse_flags

ROOT = Path(__file__).parents[2]
SYSTEMS = ROOT / "workers/simulator/systems"
WHOLE = SpaceCatalog().space("vllm-ascend-910c")
SPACE = instantiate(WHOLE, WHOLE.stack).space
BASELINE = load_system(SYSTEMS / "qwen3.5-35b-a3b-910c.yaml")
ENGINE_UPGRADE = load_system(SYSTEMS / "qwen3.5-35b-a3b-910c-v0.23-cann9.0.yaml")
UPGRADED = load_system(SYSTEMS / "qwen3.5-35b-a3b-910c-v0.23.yaml")
FACTS = facts(
    Deployment(template="simulated-910c", model="Qwen3.5-35B-A3B", devices=2, tensor_parallel=2, max_model_len=4096),
    Workload(
        prompt_tokens=1024,
        output_tokens=512,
        levels=tuple(LoadLevel(concurrency=c, requests=80) for c in (1, 4, 8)),
    ),
)
RECIPES = {recipe.name: recipe.values for recipe in SPACE.recipes}
JEMALLOC = {"host_allocator": "jemalloc"}


def model_of(system: System, values: dict[str, KnobValue], sizes: str | None = None) -> CostModel:
    """The cost model of a candidate, by way of its rendered command line; `sizes` overrides the capture sizes."""
    plan = render(SPACE, SPACE.settle(SPACE.complete(values), FACTS).candidate, FACTS).roles["server"]
    argv = ["serve", "system.yaml", *plan.argv]
    if sizes:
        argv += ["--compilation-config", f'{{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":{sizes}}}']
    libraries = [f"/lib/lib{name}.so" for name in plan.preload]
    return CostModel(system, configure(parse_flags(argv), plan.env, libraries, system))


def tpot(system: System, values: dict[str, KnobValue], concurrency: int = 1, sizes: str | None = None) -> float:
    return model_of(system, values, sizes).closed_loop_tpot_ms(concurrency, 1024, 512)


@pytest.mark.parametrize(("concurrency", "reported"), [(1, 14.22), (4, 17.56), (8, 21.17)])
def test_the_baseline_meets_the_report(concurrency: int, reported: float) -> None:
    assert tpot(BASELINE, {}, concurrency) == pytest.approx(reported, rel=0.02)


def test_the_ladder_at_c1_meets_the_report_step_by_step() -> None:
    prefetch = {**RECIPES["report-a-allocator"], **JEMALLOC, "weight_prefetch": True}
    ladder: list[tuple[System, dict[str, KnobValue], float]] = [
        (BASELINE, {}, 14.22),
        (ENGINE_UPGRADE, {}, 12.0),
        (ENGINE_UPGRADE, RECIPES["report-a-aiv"], 11.2),
        (ENGINE_UPGRADE, RECIPES["report-a-aiv-static"], 9.1),
        (ENGINE_UPGRADE, RECIPES["report-a-allocator"], 8.8),
        (UPGRADED, RECIPES["report-a-allocator"], 8.5),
        (UPGRADED, {**RECIPES["report-a-allocator"], **JEMALLOC}, 8.4),
        (UPGRADED, prefetch, 8.3),
        (UPGRADED, RECIPES["report-a-mtp4"], 5.0),
    ]
    for system, values, reported in ladder:
        assert tpot(system, values) == pytest.approx(reported, rel=0.02), values


@pytest.mark.parametrize("system", [BASELINE, ENGINE_UPGRADE, UPGRADED], ids=["baseline", "engine", "upgraded"])
def test_single_steps_gain_what_the_report_says_on_every_stack(system: System) -> None:
    steps = ["report-a-aiv", "report-a-aiv-static", "report-a-allocator"]
    times = [tpot(system, {}), *(tpot(system, RECIPES[step]) for step in steps)]
    gains = [1 - after / before for before, after in pairwise(times)]
    assert gains == pytest.approx([0.066, 0.187, 0.033], abs=0.003)


@pytest.mark.parametrize("system", [BASELINE, UPGRADED], ids=["baseline", "upgraded"])
@pytest.mark.parametrize(("concurrency", "gain_ms"), [(1, 0.1), (4, 0.3), (8, 0.6)])
def test_jemalloc_gains_more_at_high_concurrency(system: System, concurrency: int, gain_ms: float) -> None:
    values = RECIPES["report-a-allocator"]
    gain = tpot(system, values, concurrency) - tpot(system, {**values, **JEMALLOC}, concurrency)
    assert gain == pytest.approx(gain_ms, abs=0.02)


@pytest.mark.parametrize(("concurrency", "gain_ms"), [(1, 0.1), (4, 0.2)])
def test_weight_prefetch_gains_what_the_report_says(concurrency: int, gain_ms: float) -> None:
    values = RECIPES["report-a-aiv-static"]
    gain = tpot(UPGRADED, values, concurrency) - tpot(UPGRADED, {**values, "weight_prefetch": True}, concurrency)
    assert gain == pytest.approx(gain_ms, abs=0.05)


def test_prefetch_below_the_source_threshold_never_fires() -> None:
    weights = BASELINE.weights.model_copy(update={"prefetch_token_threshold": 96})
    stock = BASELINE.model_copy(update={"weights": weights})
    plain, prefetching = model_of(stock, {}), model_of(stock, {"weight_prefetch": True})
    assert plain.decode_step_ms(8) == prefetching.decode_step_ms(8)


def test_speculation_with_uncovered_shapes_is_the_trap_of_the_report() -> None:
    values = RECIPES["report-a-mtp4"]
    covered, trapped = tpot(UPGRADED, values, 8), tpot(UPGRADED, values, 8, sizes="[1,2,4,8]")
    assert covered == pytest.approx(10.4, rel=0.02)
    assert trapped == pytest.approx(42.0, rel=0.02)
    assert tpot(UPGRADED, values, 1, sizes="[1,2,4,8]") == tpot(UPGRADED, values, 1)  # 5 tokens are captured


def test_ttft_of_the_baseline() -> None:
    model = model_of(BASELINE, {})
    assert model.ttft_ms(1024) == pytest.approx(165, rel=0.02)
    assert model.ttft_ms(64) < 40
    assert model.ttft_ms(4096) > 3.5 * model.ttft_ms(1024)
    assert model_of(BASELINE, {"weight_prefetch": True}).ttft_ms(1024) < model.ttft_ms(1024)
