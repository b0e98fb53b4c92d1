"""Mechanisms of the cost and memory model: directions, interactions and bounds, without figures of a report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.simulator.device.allocator_conf import parse_allocator
from workers.simulator.faults import DeviceOutOfMemory, EngineFailed
from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.host import allocator_gain
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.settings import (
    Allocator,
    GraphMode,
    ServingConfig,
    Speculation,
    default_capture_sizes,
    effective_capture_sizes,
)
from workers.simulator.model.step import StepShape
from workers.simulator.model.system import load_system
from workers.simulator.serving.batching import Batcher, Sequence
from workers.simulator.serving.noise import Noise
from workers.simulator.start.start_checks import check_capture, check_kv_cache, check_load

SYSTEM = load_system(Path(__file__).parents[2] / "workers/simulator/systems/qwen3.5-35b-a3b-910c.yaml")
PAGES = Allocator(page_size_1g=True, pinned_use_background_threads=True, pin_memory_expandable_segments=True)
LEAN = Allocator(roundup_power2_divisions=16)


def config(drafts: int = 0, **changes: Any) -> ServingConfig:
    rows = 1 + drafts
    values: dict[str, Any] = {
        "tensor_parallel": 2,
        "max_num_seqs": 16,
        "max_model_len": 1600,
        "graph_mode": GraphMode.FULL_DECODE_ONLY,
        "capture_sizes": (rows, 4 * rows, 8 * rows),
        "speculation": Speculation(method="mtp", draft_tokens=drafts) if drafts else None,
    }
    return ServingConfig.model_validate({**values, **changes})


def cost(drafts: int = 0, **changes: Any) -> CostModel:
    return CostModel(SYSTEM, config(drafts, **changes))


def step(sequences: int = 1, drafts: int = 0, **changes: Any) -> float:
    return cost(drafts, **changes).decode_step_ms(sequences)


configs = st.builds(
    lambda drafts, changes: config(drafts, **changes),
    st.integers(0, 8),
    st.fixed_dictionaries(
        {
            "graph_mode": st.sampled_from(GraphMode),
            "capture_sizes": st.lists(st.integers(1, 600), max_size=4).map(lambda s: tuple(sorted(s))),
            "tensor_parallel": st.sampled_from([1, 2, 4, 8]),
            "hccl_op_expansion_mode": st.sampled_from([None, "AIV", "AI_CPU"]),
            "hccl_buffsize_mb": st.none() | st.integers(1, 10_000),
            "static_kernel_asked": st.booleans(),
            "weight_prefetch": st.booleans(),
            "jemalloc": st.booleans(),
            "allocator": st.sampled_from([Allocator(), PAGES, LEAN, Allocator(expandable_segments=False)]),
            "omp_num_threads": st.sampled_from([None, 1, 2, 16, 99]),
            "cpu_binding": st.booleans(),
            "cpu_affinity": st.integers(0, 2),
            "task_queue": st.integers(0, 2),
            "max_num_seqs": st.integers(1, 256),
            "aclnn_cache_limit": st.none() | st.integers(1, 1_000_000),
        }
    ),
)


@settings(max_examples=150, deadline=None)
@given(configs, st.integers(1, 256))
def test_no_step_beats_the_memory_bandwidth(setting: ServingConfig, sequences: int) -> None:
    model = CostModel(SYSTEM, setting)
    tokens = sequences * (1 + setting.draft_tokens)
    bound = model.floor_ms(tokens)
    noise = Noise("any")
    for mean in (model.decode_step_ms(sequences), model.step_ms(StepShape(sequences, prompt_tokens=100))):
        assert noise.step_ms(model, mean) > bound
    assert 1 <= model.tokens_per_step() <= 1 + setting.draft_tokens


@settings(max_examples=60, deadline=None)
@given(configs, st.integers(1, 64))
def test_more_work_never_takes_less_time(setting: ServingConfig, sequences: int) -> None:
    model = CostModel(SYSTEM, setting.model_copy(update={"capture_sizes": ()}))
    assert model.decode_step_ms(sequences + 1) >= model.decode_step_ms(sequences)
    longer, shorter = (StepShape(sequences, prompt_tokens=tokens) for tokens in (200, 100))
    assert model.step_ms(longer) >= model.step_ms(shorter)


def test_graph_modes_are_ordered() -> None:
    whole, pieces = step(), step(graph_mode=GraphMode.PIECEWISE)
    eager = step(graph_mode=GraphMode.NONE, capture_sizes=())
    assert 1.2 * whole < pieces
    assert 3 * whole < eager


def test_static_kernels_need_a_mode_without_pieces() -> None:
    mode = GraphMode.FULL_AND_PIECEWISE
    assert step(graph_mode=mode, static_kernel_asked=True) == step(graph_mode=mode)
    assert step(static_kernel_asked=True) < step()


def test_padding_costs() -> None:
    assert step(5, capture_sizes=(1, 16)) > step(5, capture_sizes=(1, 6))


def test_draft_length_has_an_interior_optimum_that_shrinks_with_load() -> None:
    best = {}
    for concurrency in (1, 8):
        best[concurrency] = min((cost(k).closed_loop_tpot_ms(concurrency, 1024, 512), k) for k in range(9))[1]
        assert 1 < best[concurrency] < 8
    assert best[8] <= best[1]


def test_aiv_makes_collectives_shorter_and_one_rank_has_none() -> None:
    assert step(hccl_op_expansion_mode="AIV") < step() == step(hccl_op_expansion_mode="AI_CPU")
    alone = {"tensor_parallel": 1}
    assert step(**alone, hccl_op_expansion_mode="AIV") == step(**alone)


def test_the_leaner_allocator_set_wins_only_beside_jemalloc() -> None:
    assert allocator_gain(PAGES, jemalloc=False) > allocator_gain(LEAN, jemalloc=False)
    assert allocator_gain(LEAN, jemalloc=True) > allocator_gain(PAGES, jemalloc=True)
    assert allocator_gain(Allocator(expandable_segments=False), jemalloc=True) < 0
    overridden = PAGES.model_copy(update={"roundup_power2_divisions": 16})
    assert allocator_gain(overridden, jemalloc=True) == allocator_gain(PAGES, jemalloc=True)


def test_cores_bound_once_help_and_twice_harm() -> None:
    assert step(cpu_binding=True) < step()
    assert step(cpu_affinity=2) > step() > step(cpu_affinity=1)
    assert step(cpu_affinity=1, cpu_binding=True) > step(cpu_binding=True)
    assert step(omp_num_threads=1) < step() < step(omp_num_threads=16)


def test_the_operator_cache_cuts_the_tail() -> None:
    model, noise = cost(), Noise("tail")
    drawn = sorted(noise.step_ms(model, model.decode_step_ms(1)) for _ in range(4000))
    assert drawn[-1] > drawn[2000] + 10
    assert sum(drawn) / 4000 == pytest.approx(model.decode_step_ms(1) * noise.launch_factor, rel=0.01)
    assert cost(aclnn_cache_limit=100_000).cache_miss_share == 0


def test_launches_differ_by_about_one_percent_and_repeat_by_seed() -> None:
    factors = [Noise(str(seed)).launch_factor for seed in range(300)]
    spread = math.sqrt(sum((f - 1) ** 2 for f in factors) / 300)
    assert spread == pytest.approx(0.01, rel=0.15)
    assert Noise("7").launch_factor == Noise("7").launch_factor


def test_capture_sizes_become_multiples_of_a_decode_row() -> None:
    assert effective_capture_sizes((1, 2, 4, 8), 16, 0, 2048) == (1, 2, 4, 8)
    assert effective_capture_sizes((1, 2, 4, 8), 16, 4, 2048) == (5,)
    assert effective_capture_sizes((5, 20, 40), 16, 4, 2048) == (5, 20, 40)
    assert effective_capture_sizes(None, 16, 0, 2048) == (1, 2, 4, 8, 16)
    assert default_capture_sizes(12, 0)[-1] == 8  # off the grid: batches above 8 run eagerly
    with pytest.raises(ValueError, match="No valid cudagraph sizes after rounding to multiple of 5"):
        effective_capture_sizes((1, 2, 4), 16, 4, 2048)


@pytest.mark.parametrize(
    "text",
    [
        "expandable_segments:False,page_size:1g",
        "page_size:2g",
        "expandable_segments:true",
        "unknown:1",
        "expandable_segments:True,max_split_size_mb:64",
        "base_addr_aligned_kb:17",
        "roundup_power2_divisions:3",
        "nonsense",
    ],
)
def test_wrong_allocator_options_are_refused(text: str) -> None:
    with pytest.raises(EngineFailed):
        parse_allocator(text)


def test_the_platform_switches_expandable_segments_on() -> None:
    assert parse_allocator("").expandable_segments
    assert parse_allocator("page_size:1g").expandable_segments
    assert not parse_allocator("max_split_size_mb:64").expandable_segments
    assert parse_allocator("expandable_segments:True,roundup_power2_divisions:16") == LEAN


def test_memory_runs_out_first_under_load_then_at_capture_then_at_profiling() -> None:
    def memory(buffer_mb: int, utilization: float = 0.92) -> MemoryModel:
        setting = config(hccl_buffsize_mb=buffer_mb, gpu_memory_utilization=utilization)
        return MemoryModel(SYSTEM, setting)

    check_capture(memory(200))
    check_load(memory(200), 8)
    check_capture(memory(2048))
    with pytest.raises(DeviceOutOfMemory, match=r"NPU out of memory\. Tried to allocate \d"):
        check_load(memory(2048), 8)
    with pytest.raises(DeviceOutOfMemory):
        check_capture(memory(4096))
    with pytest.raises(DeviceOutOfMemory):
        check_load(memory(1200, 0.95), 8)
    with pytest.raises(EngineFailed, match="No available memory for the cache blocks"):
        check_kv_cache(memory(200, 0.55))


def test_recurrent_states_limit_the_seats() -> None:
    check_kv_cache(MemoryModel(SYSTEM, config(max_num_seqs=256)))
    with pytest.raises(EngineFailed, match=r"max_num_seqs \(256\) exceeds available Mamba cache blocks"):
        check_kv_cache(MemoryModel(SYSTEM, config(8, max_num_seqs=256)))


def test_more_seats_and_larger_buffers_leave_less_cache() -> None:
    free = MemoryModel(SYSTEM, config()).kv_cache
    assert MemoryModel(SYSTEM, config(max_num_seqs=256)).kv_cache < free
    assert MemoryModel(SYSTEM, config(hccl_buffsize_mb=1024)).kv_cache == pytest.approx(free - 2 * 2 * 824 / 1024)


def closed_loop(model: CostModel, concurrency: int, prompt: int, output: int, requests: int) -> tuple[float, float]:
    """Mean TPOT and mean TTFT in ms of a closed loop in virtual time."""
    batcher = Batcher(model, MemoryModel(SYSTEM, model.config), Noise("virtual"))
    now, sent, tpots, ttfts = 0.0, 0, [], []
    first: dict[int, float] = {}
    arrived: dict[int, float] = {}
    alive: list[Sequence] = []  # keeps ids unique

    def send() -> None:
        nonlocal sent
        sequence = Sequence(prompt_tokens=prompt, max_tokens=output, seed=sent)
        arrived[id(sequence)] = now
        alive.append(sequence)
        batcher.add(sequence)
        sent += 1

    for _ in range(concurrency):
        send()
    while plan := batcher.plan():
        now += plan.duration_ms
        for out in batcher.finish(plan):
            key = id(out.sequence)
            if key not in first:
                first[key] = now
                ttfts.append(now - arrived[key])
            if out.sequence.finished:
                tpots.append((now - first[key]) / (output - 1))
                if sent < requests:
                    send()
    assert len(tpots) == requests
    return sum(tpots) / requests, sum(ttfts) / requests


@pytest.mark.parametrize(("concurrency", "drafts"), [(1, 0), (4, 0), (8, 0), (1, 4), (8, 4)])
def test_a_closed_loop_meets_the_expected_tpot(concurrency: int, drafts: int) -> None:
    model = cost(drafts)
    measured, _ = closed_loop(model, concurrency, 1024, 512, 10 * concurrency)
    expected = model.closed_loop_tpot_ms(concurrency, 1024, 512) * Noise("virtual").launch_factor
    assert measured == pytest.approx(expected, rel=0.03)


def test_too_few_seats_make_requests_wait() -> None:
    _, quick = closed_loop(cost(), 8, 256, 32, 24)
    _, slow = closed_loop(cost(max_num_seqs=4), 8, 256, 32, 24)
    assert slow > 2 * quick
