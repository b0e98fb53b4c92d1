"""From flags and environment to the effective configuration, with the engine's own refusals.

Pure: the environment and the loaded libraries are handed in. Unknown keys of `--additional-config` and unknown
env variables have no effect, as on the real server; warnings for the latter come from `env_warnings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from workers.simulator.device.collective_algorithm import algorithm_between_hosts
from workers.simulator.device.environment import allocator, cpu_affinity, expansion_mode, integer, switch, task_queue
from workers.simulator.faults import ConfigRejected, EngineFailed
from workers.simulator.model.settings import (
    GraphMode,
    ServingConfig,
    Speculation,
    effective_capture_sizes,
    largest_asked_size,
)
from workers.simulator.model.system import System
from workers.simulator.vllm.engine_constants import EngineConstants
from workers.simulator.vllm.flags import Flags
from workers.simulator.vllm.options import (
    AdditionalConfig,
    CacheConfig,
    CompilationConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    checked,
)
from workers.simulator.vllm.refusals import check_budget, check_ranks, check_sequence_parallel

ATTENTION_ROWS = 16  # the fused attention kernel takes at most so many rows (1 + drafts) a sequence
EXPANSION_MODES = ("AI_CPU", "AIV", "HOST", "HOST_TS")
KNOWN_VLLM_ENV = frozenset(
    {
        "VLLM_ENGINE_READY_TIMEOUT_S",
        "VLLM_LOGGING_LEVEL",
        "VLLM_RPC_TIMEOUT",
        "VLLM_SERVER_DEV_MODE",
        "VLLM_USE_V1",
        "VLLM_WORKER_MULTIPROC_METHOD",
    }
)
# Keys of `--additional-config` that have a variable as well: the only ones of which the platform says what it read.
ANNOUNCED = {
    "enable_flashcomm1": "VLLM_ASCEND_ENABLE_FLASHCOMM1",
    "enable_matmul_allreduce": "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE",
}
# The platform turns these into numbers while it is imported; they have no place in the model.
PLATFORM_NUMBERS = (
    "VLLM_ASCEND_BALANCE_SCHEDULING",
    "VLLM_ASCEND_ENABLE_FUSED_MC2",
    "VLLM_ASCEND_ENABLE_MLAPO",
    "VLLM_ASCEND_ENABLE_NZ",
    "VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE",
)
DEVICES = "ASCEND_RT_VISIBLE_DEVICES"


def configure(
    flags: Flags,
    env: Mapping[str, str],
    libraries: Iterable[str],
    system: System,
    constants: EngineConstants | None = None,
) -> ServingConfig:
    """The effective configuration.

    `libraries` are paths mapped into the process: a preloaded allocator counts only when it is really there.
    `constants` are those of the engine's modules, its own where None. Raises ConfigRejected with the front end's text,
    EngineFailed for an env variable that a lower layer refuses.
    """
    constants = constants or EngineConstants()
    _check_platform_numbers(env)
    compilation = checked(CompilationConfig, flags.compilation_config)
    additional = checked(AdditionalConfig, flags.additional_config)
    checked(CacheConfig, {"gpu_memory_utilization": flags.gpu_memory_utilization})
    sizes = {"max_num_seqs": flags.max_num_seqs, "max_num_batched_tokens": flags.max_num_batched_tokens}
    checked(SchedulerConfig, sizes)
    checked(ParallelConfig, {name: getattr(flags, name) for name in ParallelConfig.model_fields})
    check_ranks(flags.tensor_parallel_size * flags.data_parallel_size, _visible(env))
    max_model_len = flags.max_model_len or system.cache.max_model_len
    checked(ModelConfig, {"max_model_len": max_model_len})
    if max_model_len > system.cache.max_model_len:
        raise ConfigRejected(
            f"1 validation error for ModelConfig\n  Value error, User-specified max_model_len ({max_model_len}) is "
            f"greater than the derived max_model_len (max_position_embeddings={system.cache.max_model_len})."
        )
    check_budget(flags.enable_chunked_prefill, flags.max_num_batched_tokens, max_model_len)
    speculation = _speculation(flags.speculative_config, system)
    if compilation.pass_config.get("enable_sp"):
        check_sequence_parallel(flags.tensor_parallel_size, 1 + (speculation.draft_tokens if speculation else 0))
    mode = GraphMode.NONE if flags.enforce_eager else compilation.cudagraph_mode
    capture_sizes = _capture_sizes(flags, compilation, mode, speculation)
    return ServingConfig(
        tensor_parallel=flags.tensor_parallel_size,
        data_parallel=flags.data_parallel_size,
        expert_parallel=flags.enable_expert_parallel is True,
        block_size=flags.block_size or ServingConfig().block_size,
        prefix_caching=flags.enable_prefix_caching is not False,
        chunked_prefill=flags.enable_chunked_prefill is not False,
        async_scheduling=flags.async_scheduling is not False,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_model_len=max_model_len,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        graph_mode=mode,
        capture_sizes=capture_sizes,
        truncated_capture_size=_truncated(flags, compilation, capture_sizes, speculation),
        speculation=speculation,
        static_kernel_asked=additional.static_kernel,
        weight_prefetch=additional.weight_prefetch_config.enabled,
        pa_shapes=tuple(additional.pa_shape_list),
        cpu_binding=additional.enable_cpu_binding,
        allocator=allocator(env, system, grows=True),
        jemalloc=any("jemalloc" in path for path in libraries),
        hccl_op_expansion_mode=expansion_mode(env, EXPANSION_MODES),
        hccl_buffsize_mb=integer(env, "HCCL_BUFFSIZE", 1, 2**20),
        local_world_size=integer(env, "LOCAL_WORLD_SIZE", 1, 2**20),
        aclnn_cache_limit=integer(env, "ACLNN_CACHE_LIMIT", 1, 10_000_000),
        omp_num_threads=integer(env, "OMP_NUM_THREADS", 1, 2**20),
        cpu_affinity=cpu_affinity(env),
        flashcomm=switch(env, "VLLM_ASCEND_ENABLE_FLASHCOMM1") or additional.enable_flashcomm1,
        matmul_allreduce=switch(env, "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE") or additional.enable_matmul_allreduce,
        task_queue=task_queue(env),
        batch_memcpy=switch(env, "VLLM_ASCEND_ENABLE_BATCH_MEMCPY"),
        graph_warmups=constants.graph_warmups,
        prefetch_token_threshold=constants.prefetch_token_threshold,
        hccl_algo=algorithm_between_hosts(env),
        overlap_communication=constants.overlap_communication,
        fused_gating=constants.fused_gating,
        balanced_experts=constants.balanced_experts or _moves_experts(additional, env),
        fused_mc2=env.get("VLLM_ASCEND_ENABLE_FUSED_MC2", "0") not in {"", "0"},
        multi_stream=additional.multistream_overlap_shared_expert,
    )


def _moves_experts(additional: AdditionalConfig, env: Mapping[str, str]) -> bool:
    """The option counts only beside its variable."""
    return additional.eplb_config.dynamic_eplb and env.get("DYNAMIC_EPLB", "").lower() in {"true", "1"}


def _visible(env: Mapping[str, str]) -> int | None:
    """How many devices the process may use; None where nothing is said."""
    return len(env[DEVICES].split(",")) if env.get(DEVICES) else None


def _check_platform_numbers(env: Mapping[str, str]) -> None:
    for name in PLATFORM_NUMBERS:
        text = env.get(name, "0")
        try:
            int(text)
        except ValueError as error:
            raise EngineFailed("ValueError", f"{error} (environment variable {name})", "register_platform") from error


def env_warnings(env: Mapping[str, str]) -> list[str]:
    """vLLM warns of every `VLLM_` name that it does not know, the platform's own valid names included."""
    unknown = sorted(name for name in env if name.startswith("VLLM_") and name not in KNOWN_VLLM_ENV)
    return [f"Unknown vLLM environment variable detected: {name}" for name in unknown]


def announcements(flags: Flags, env: Mapping[str, str]) -> list[str]:
    """What the platform says of the settings that it read. Of a key that it does not know, it says nothing."""
    found = []
    for key, name in ANNOUNCED.items():
        if key in flags.additional_config:
            found.append(f"AscendConfig.{key} is set from additional_config with value {flags.additional_config[key]}.")
        elif name in env:
            found.append(f"AscendConfig.{key} falls back to environment variable {name} with value {env[name]}.")
    return found


def _truncated(
    flags: Flags, compilation: CompilationConfig, sizes: tuple[int, ...], speculation: Speculation | None
) -> int | None:
    drafts = speculation.draft_tokens if speculation else 0
    asked = largest_asked_size(compilation.listed_sizes, flags.max_num_seqs, drafts)
    return sizes[-1] if sizes and sizes[-1] < asked else None


def _speculation(content: dict[str, Any] | None, system: System) -> Speculation | None:
    if content is None:
        return None
    asked = checked(SpeculativeConfig, content)
    known = system.speculation.methods
    if asked.method is None and asked.model is None:
        raise ConfigRejected("num_speculative_tokens was provided but without speculative model.")
    if asked.method not in known:
        raise ConfigRejected(f"Unsupported speculative method: '{asked.method}'")
    drafts = 1 if asked.num_speculative_tokens is None else asked.num_speculative_tokens
    if drafts + 1 > ATTENTION_ROWS:
        raise ConfigRejected(
            f"1 validation error for SpeculativeConfig\n  Value error, num_speculative_tokens ({drafts}) must be less "
            f"than {ATTENTION_ROWS}: the attention kernel supports at most {ATTENTION_ROWS} rows a sequence. "
            "[type=value_error]"
        )
    return Speculation(method=asked.method, draft_tokens=drafts)


def _capture_sizes(
    flags: Flags, compilation: CompilationConfig, mode: GraphMode, speculation: Speculation | None
) -> tuple[int, ...]:
    if mode is GraphMode.NONE:
        return ()
    drafts = speculation.draft_tokens if speculation else 0
    try:
        return effective_capture_sizes(
            compilation.listed_sizes, flags.max_num_seqs, drafts, flags.max_num_batched_tokens
        )
    except ValueError as error:
        raise ConfigRejected(str(error)) from error
