"""Each cause of a step's time can be told from the others, and acts as its mechanism says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.knobs import KnobValue
from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.host import allocator_gain
from workers.simulator.model.settings import Allocator, GraphMode, ServingConfig, Speculation
from workers.simulator.model.step import StepShape
from workers.simulator.model.system import System, load_system

SYSTEMS = Path(__file__).parents[2] / "workers/simulator/systems"
SPARSE = load_system(SYSTEMS / "qwen3.5-35b-a3b-910c-v0.23.yaml")
DENSE = load_system(SYSTEMS / "qwen3-32b-910c.yaml")
SMALL = load_system(SYSTEMS / "qwen3-8b-910c.yaml")
GRAPHS = ServingConfig(
    tensor_parallel=2,
    max_num_seqs=16,
    max_num_batched_tokens=8192,
    graph_mode=GraphMode.FULL_DECODE_ONLY,
    capture_sizes=(1, 2, 4, 8, 16),
)


def changed(config: ServingConfig, **settings: object) -> ServingConfig:
    return config.model_copy(update=settings)


def drafting(drafts: int, **more: object) -> ServingConfig:
    sizes = tuple(c * (1 + drafts) for c in (1, 2, 4, 8, 16))
    speculation = Speculation(method="mtp", draft_tokens=drafts) if drafts else None
    return changed(GRAPHS, speculation=speculation, capture_sizes=sizes, **more)


def step(system: System, config: ServingConfig, sequences: int = 1) -> float:
    return CostModel(system, config).decode_step_ms(sequences)


def per_token(config: ServingConfig, sequences: int, data_set: str) -> float:
    model = CostModel(SPARSE, config, data_set)
    return model.decode_step_ms(sequences) / model.tokens_per_step()


def share(system: System, config: ServingConfig, **settings: object) -> float:
    """By which share of the step a change shortens it."""
    return 1 - step(system, changed(config, **settings)) / step(system, config)


def test_vector_cores_gain_more_where_collectives_weigh_more() -> None:
    shares = {}
    for system in (SMALL, DENSE):
        causes = CostModel(system, GRAPHS).causes_ms(1)
        weight = causes["collectives"] / sum(causes.values())
        shares[weight] = share(system, GRAPHS, hccl_op_expansion_mode="AIV")
    assert shares[max(shares)] > 1.5 * shares[min(shares)]
    alone = changed(GRAPHS, tensor_parallel=1)
    assert share(SMALL, alone, hccl_op_expansion_mode="AIV") == 0


def test_static_kernels_gain_more_on_a_sparse_model_than_on_a_dense_one() -> None:
    sparse = share(SPARSE, GRAPHS, static_kernel_asked=True)
    dense = share(DENSE, GRAPHS, static_kernel_asked=True)
    assert sparse > 5 * dense > 0


def test_static_kernels_need_whole_graphs() -> None:
    pieces = changed(GRAPHS, graph_mode=GraphMode.PIECEWISE)
    assert share(SPARSE, pieces, static_kernel_asked=True) == 0


@pytest.mark.parametrize(("data_set", "concurrency", "best"), [("business", 1, (3, 7)), ("gsm8k", 1, (5, 8))])
def test_the_best_draft_length_lies_inside(data_set: str, concurrency: int, best: tuple[int, int]) -> None:
    times = {k: per_token(drafting(k), concurrency, data_set) for k in range(12)}
    low, high = best
    assert low <= min(times, key=times.__getitem__) <= high
    assert times[11] > min(times.values()) < times[0]


def test_the_best_draft_length_falls_with_concurrency_and_rises_with_acceptance() -> None:
    def best(concurrency: int, data_set: str) -> int:
        times = {k: per_token(drafting(k), concurrency, data_set) for k in range(12)}
        return min(times, key=times.__getitem__)

    assert best(1, "business") >= best(4, "business") >= best(8, "business")
    assert best(1, "business") > best(8, "business")
    assert best(1, "gsm8k") > best(1, "business")
    assert best(8, "gsm8k") > best(8, "business")


def test_jemalloc_gains_more_the_more_streams() -> None:
    gains = [step(SPARSE, GRAPHS, c) - step(SPARSE, changed(GRAPHS, jemalloc=True), c) for c in (1, 4, 8)]
    assert gains == sorted(gains)
    assert gains[2] > 4 * gains[0]


def test_prefetch_below_the_threshold_of_the_engine_never_fires() -> None:
    stock = changed(GRAPHS, weight_prefetch=True, prefetch_token_threshold=96)
    patched = changed(stock, prefetch_token_threshold=1)
    assert step(SPARSE, stock, 8) == step(SPARSE, GRAPHS, 8)
    assert step(SPARSE, patched, 8) < step(SPARSE, GRAPHS, 8)
    assert step(DENSE, patched, 8) == step(DENSE, GRAPHS, 8)  # no experts, nothing to fetch ahead


def test_a_step_that_no_graph_holds_is_bound_by_the_host() -> None:
    short = changed(GRAPHS, capture_sizes=(1, 2, 4))
    assert 4 < step(SPARSE, short, 5) / step(SPARSE, GRAPHS, 5) < 11
    assert step(SPARSE, short, 4) == step(SPARSE, GRAPHS, 4)
    slow, fast = (step(SPARSE, changed(short, task_queue=q), 5) for q in (0, 2))
    assert slow > fast
    assert step(SPARSE, changed(GRAPHS, task_queue=0), 4) == step(SPARSE, changed(GRAPHS, task_queue=1), 4)


def test_padding_costs_rows_but_no_expert() -> None:
    exact, padded = changed(GRAPHS, capture_sizes=(5,)), changed(GRAPHS, capture_sizes=(16,))
    exact_causes = CostModel(SPARSE, exact).causes_ms(5)
    padded_causes = CostModel(SPARSE, padded).causes_ms(5)
    assert padded_causes["kernels"] > exact_causes["kernels"]
    assert padded_causes["weights"] == exact_causes["weights"]


def test_experts_of_a_batch_saturate() -> None:
    def per_sequence(sequences: int) -> float:
        return CostModel(SPARSE, GRAPHS).causes_ms(sequences)["weights"] / sequences

    assert per_sequence(1) > per_sequence(8) > per_sequence(64)
    whole = SPARSE.weights.dense_gb + SPARSE.weights.effective_experts * SPARSE.weights.expert_gb
    assert CostModel(SPARSE, GRAPHS).active_weight_bytes(4096) == pytest.approx(whole * 1e9 / 2)


def test_a_long_context_costs_attention_alone() -> None:
    model = CostModel(DENSE, GRAPHS)
    short, long = model.causes_ms(1, 1_000), model.causes_ms(1, 32_000)
    assert {name for name in short if short[name] != long[name]} == {"attention"}
    assert long["attention"] == pytest.approx(32 * short["attention"])


def test_more_ranks_read_less_and_talk_more() -> None:
    two, four = (CostModel(DENSE, changed(GRAPHS, tensor_parallel=tp)).causes_ms(1) for tp in (2, 4))
    assert four["weights"] == pytest.approx(two["weights"] / 2)
    assert four["collectives"] > two["collectives"]


def test_a_buffer_smaller_than_its_message_cuts_it_to_pieces() -> None:
    def prompt(buffer_mb: int) -> float:
        config = changed(GRAPHS, hccl_buffsize_mb=buffer_mb, max_num_batched_tokens=16384)
        return CostModel(DENSE, config).step_ms(StepShape(prompt_tokens=16384, attended_tokens=16384 * 8192))

    assert prompt(1) > prompt(16) > prompt(200) == prompt(400)
    assert step(DENSE, changed(GRAPHS, hccl_buffsize_mb=64)) == step(DENSE, GRAPHS)  # decode messages are small


def test_warm_up_runs_before_capture_help_most_at_low_concurrency() -> None:
    gains = [step(SPARSE, GRAPHS, c) - step(SPARSE, changed(GRAPHS, graph_warmups=3), c) for c in (1, 4, 8)]
    assert gains == sorted(gains, reverse=True)
    assert 0.2 <= gains[0] <= 0.3


def test_the_lean_allocator_set_is_better_only_beside_jemalloc() -> None:
    lean = Allocator(roundup_power2_divisions=16)
    first = Allocator(page_size_1g=True, pinned_use_background_threads=True, pin_memory_expandable_segments=True)
    assert allocator_gain(lean, jemalloc=True) > allocator_gain(first, jemalloc=True)
    assert allocator_gain(lean, jemalloc=False) < allocator_gain(first, jemalloc=False)


def test_causes_add_up_to_the_step() -> None:
    for config in (GRAPHS, drafting(4, static_kernel_asked=True)):
        model = CostModel(SPARSE, config)
        assert sum(model.causes_ms(4, 5_000).values()) == pytest.approx(model.decode_step_ms(4, 5_000))


def _configs() -> Iterator[tuple[str, st.SearchStrategy[object]]]:
    yield "hccl_op_expansion_mode", st.sampled_from([None, "AIV", "AI_CPU"])
    yield "static_kernel_asked", st.booleans()
    yield "jemalloc", st.booleans()
    yield "weight_prefetch", st.booleans()
    yield "prefetch_token_threshold", st.sampled_from([1, 96])
    yield "omp_num_threads", st.sampled_from([None, 1, 2])
    yield "cpu_binding", st.booleans()
    yield "batch_memcpy", st.booleans()
    yield "graph_warmups", st.integers(0, 4)
    yield "tensor_parallel", st.sampled_from([1, 2, 4])
    yield "capture_sizes", st.sampled_from([(1, 2, 4, 8, 16), (8, 16), (1,)])
    yield "aclnn_cache_limit", st.sampled_from([None, 100_000])


@settings(max_examples=200, deadline=None)
@given(
    system=st.sampled_from([SPARSE, DENSE, SMALL]),
    chosen=st.fixed_dictionaries(dict(_configs())),
    sequences=st.integers(1, 16),
    drafts=st.integers(0, 8),
)
def test_no_step_is_faster_than_its_weights_can_be_read(
    system: System, chosen: dict[str, KnobValue], sequences: int, drafts: int
) -> None:
    model = CostModel(system, changed(drafting(drafts), **chosen))
    tokens = sequences * (1 + drafts)
    assert model.decode_step_ms(sequences) >= model.floor_ms(tokens)
    more = model.decode_step_ms(sequences + 1)
    assert more >= model.decode_step_ms(sequences) - 0.05  # a padded step may cost as much as the next
