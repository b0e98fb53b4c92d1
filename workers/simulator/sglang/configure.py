"""From SGLang's arguments and environment to the effective configuration.

Pure: the environment and the loaded libraries are handed in. SGLang counts captured batches in requests and splits
limits over the replicas of attention; the configuration counts tokens of one replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workers.simulator.device.environment import allocator, cpu_affinity, expansion_mode, integer, task_queue
from workers.simulator.faults import EngineFailed
from workers.simulator.model.settings import GraphMode, Role, ServingConfig, Speculation
from workers.simulator.model.system import System
from workers.simulator.sglang.environment import truth
from workers.simulator.sglang.flags import Flags
from workers.simulator.sglang.refusals import DSPARK_BLOCK, check_arguments, check_long_sequences, check_speculation

ROLES = {"null": Role.SERVER, "prefill": Role.PREFILL, "decode": Role.DECODE}
ALL_RANKS = ("deepep", "ascend_fuseep")  # backends that spread experts over all ranks
DISPATCH = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"
DISPATCH_DEFAULT = 128
DISPATCH_MOST = 1024  # the low-latency protocol's own tag: no rank may send more
STATIC_SHARE = 0.85  # of device memory, where nothing is said: assumed, the engine computes it from the device
REQUESTS = 256  # running at once, where nothing is said: assumed, the engine derives it from the KV cache
CHUNK = 8192  # tokens of a prompt a step, where nothing is said
PAGE = 128  # tokens, on NPUs
GRAPH_BATCH = 64  # requests, largest captured batch where nothing is said: the engine's figure for large devices
STEPS = 3  # speculative steps, where nothing is said
MODES_950 = ("AIV", "AI_CPU", "AICPU_TS", "CCU_MS", "CCU_SCHED")
MODES = ("AIV", "AI_CPU", "AICPU_CacheDisable", "HOST", "HOST_TS")


def configure(flags: Flags, env: Mapping[str, str], libraries: Iterable[str], system: System) -> ServingConfig:
    """The effective configuration.

    `libraries` are paths mapped into the process: a preloaded allocator counts only when it is really there.
    Raises ConfigRejected with the front end's text, EngineFailed for a variable that a lower layer refuses.
    """
    context = flags.context_length or system.cache.max_model_len
    check_arguments(flags, env, system)
    role = ROLES[flags.disaggregation_mode]
    replicas = attention_replicas(flags)
    speculation = _speculation(flags, system)
    rows = 1 + (speculation.draft_tokens if speculation else 0)
    running = max((REQUESTS if flags.max_running_requests is None else flags.max_running_requests) // replicas, 1)
    graphs = graphs_run(flags, role)
    check_long_sequences(env)
    return ServingConfig(
        role=role,
        tensor_parallel=attention_ranks(flags),
        data_parallel=replicas,
        expert_parallel=shares_ranks(flags) or flags.ep_size > 1 or flags.moe_a2a_backend in ALL_RANKS,
        block_size=flags.page_size or PAGE,
        prefix_caching=not flags.disable_radix_cache and role is not Role.DECODE,
        chunked_prefill=flags.chunked_prefill_size != -1,
        max_num_seqs=running,
        max_num_batched_tokens=max(_budget(flags, role, replicas, context), running * rows),
        max_model_len=context,
        gpu_memory_utilization=STATIC_SHARE if flags.mem_fraction_static is None else flags.mem_fraction_static,
        graph_mode=GraphMode.FULL_DECODE_ONLY if graphs else GraphMode.NONE,
        capture_sizes=tuple(batch * rows for batch in captured_batches(flags, running)) if graphs else (),
        speculation=speculation,
        cpu_binding=truth(env, "SGLANG_SET_CPU_AFFINITY"),
        allocator=allocator(env, system, grows=False),
        jemalloc=any("jemalloc" in path for path in libraries),
        hccl_op_expansion_mode=expansion_mode(env, MODES_950 if "950" in system.chip.name else MODES),
        hccl_buffsize_mb=_buffer(flags, env),
        aclnn_cache_limit=integer(env, "ACLNN_CACHE_LIMIT", 1, 10_000_000),
        omp_num_threads=integer(env, "OMP_NUM_THREADS", 1, 2**20),
        cpu_affinity=cpu_affinity(env),
        task_queue=task_queue(env),
        hccl_algo=env.get("HCCL_ALGO"),
        overlap_communication=truth(env, "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"),
        fused_gating=truth(env, "USE_NPU_MOE_GATING_TOP_K"),
        dispatch_capacity=_dispatch(flags, env),
        multi_stream=truth(env, "SGLANG_NPU_USE_MULTI_STREAM"),
        barriers=truth(env, "SGLANG_ENABLE_WAR_BARRIER") or truth(env, "SGLANG_FORCE_COARSE_WAR_BARRIER"),
        hierarchical_cache=flags.enable_hierarchical_cache,
        host_cache_ratio=flags.hicache_ratio,
        async_scheduling=not flags.disable_overlap_schedule,
    )


def attention_replicas(flags: Flags) -> int:
    """Copies of attention, each with a share of the running requests."""
    return flags.dp_size if flags.attn_dp_size is None else flags.attn_dp_size


def shares_ranks(flags: Flags) -> bool:
    """Whether the copies share `tp_size` ranks, and the experts lie over all of these; else each has its own."""
    return flags.enable_dp_attention or flags.attn_dp_size is not None


def attention_ranks(flags: Flags) -> int:
    """Ranks of one copy of attention."""
    return flags.tp_size // attention_replicas(flags) if shares_ranks(flags) else flags.tp_size


def graphs_run(flags: Flags, role: Role) -> bool:
    """Whether decode steps are captured: never on prefill, and not through DeepEP's normal mode."""
    if flags.disable_cuda_graph or flags.cuda_graph_backend_decode == "disabled" or role is Role.PREFILL:
        return False
    return not (flags.moe_a2a_backend == "deepep" and flags.deepep_mode == "normal")


def captured_batches(flags: Flags, running: int) -> tuple[int, ...]:
    """Captured batches in requests of one replica: none above its running requests, these included."""
    if flags.cuda_graph_bs_decode is not None:
        asked = set(flags.cuda_graph_bs_decode)
    else:
        most = flags.cuda_graph_max_bs_decode or GRAPH_BATCH
        if flags.speculative_algorithm:
            grid = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 769, 8))
        else:
            grid = (1, 2, 4, 8, 12, *range(16, 769, 8))
        asked = {batch for batch in grid if batch <= most}
    if max(asked) > running:
        asked = {batch for batch in asked if batch <= running} | {running}
    return tuple(sorted(asked))


def _budget(flags: Flags, role: Role, replicas: int, context: int) -> int:
    """Prompt tokens a step of one replica. Without chunks the longest prompt is one step."""
    if role is Role.DECODE:
        return 1  # prompts come computed
    if flags.chunked_prefill_size == -1:
        return max(flags.max_prefill_tokens, context)
    return max((flags.chunked_prefill_size or CHUNK) // replicas, 1)


def _speculation(flags: Flags, system: System) -> Speculation | None:
    algorithm = flags.speculative_algorithm
    if algorithm is None:
        return None
    check_speculation(flags, system)
    if algorithm == "DSPARK":
        block = flags.speculative_dspark_block_size or DSPARK_BLOCK
        return Speculation(method=algorithm, draft_tokens=block)
    rows = flags.speculative_num_draft_tokens
    steps = flags.speculative_num_steps or STEPS
    return Speculation(method=algorithm, draft_tokens=steps if rows is None else rows - 1)


def _buffer(flags: Flags, env: Mapping[str, str]) -> int | None:
    """DeepEP's communicator has a variable of its own, and falls back to the common one."""
    common = integer(env, "HCCL_BUFFSIZE", 1, 2**20)
    own = integer(env, "DEEPEP_HCCL_BUFFSIZE", 1, 2**20)
    return common if own is None or flags.moe_a2a_backend != "deepep" else own


def _dispatch(flags: Flags, env: Mapping[str, str]) -> int | None:
    """Rows of one replica that its ranks can send in a low-latency step; None: no limit."""
    asked = integer(env, DISPATCH, 0, 2**20)
    if flags.moe_a2a_backend != "deepep" or flags.deepep_mode == "normal" or asked == 0:
        return None
    rank = DISPATCH_DEFAULT if asked is None else asked
    if rank > DISPATCH_MOST:
        raise EngineFailed(
            "AssertionError", f"num_max_dispatch_tokens_per_rank ({rank}) must be <= {DISPATCH_MOST}", "initialize"
        )
    return rank * attention_ranks(flags)
