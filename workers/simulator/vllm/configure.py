"""From flags and environment to the effective configuration, with the engine's own refusals.

Pure: the environment and the loaded libraries are handed in. Unknown keys of `--additional-config` and unknown
env variables have no effect, as on the real server; warnings for the latter come from `env_warnings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from workers.simulator.faults import ConfigRejected, EngineFailed
from workers.simulator.model.settings import (
    Allocator,
    GraphMode,
    ServingConfig,
    Speculation,
    effective_capture_sizes,
    largest_asked_size,
)
from workers.simulator.model.system import System
from workers.simulator.vllm.allocator_conf import parse_allocator
from workers.simulator.vllm.flags import Flags
from workers.simulator.vllm.refusals import check_budget, check_sequence_parallel

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
_Positive = Annotated[int, Field(ge=1)]
M = TypeVar("M", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CompilationConfig(_Strict):
    """The keys of `--compilation-config` that the simulator reads, and those that it lets pass."""

    cudagraph_mode: GraphMode = GraphMode.FULL_AND_PIECEWISE
    cudagraph_capture_sizes: list[_Positive] | None = None
    max_cudagraph_capture_size: int | None = None
    mode: int | str | None = None
    level: int | None = None
    cudagraph_num_of_warmups: int | None = None
    compile_sizes: list[_Positive] | None = None
    pass_config: dict[str, Any] = Field(default_factory=dict)
    custom_ops: list[str] = Field(default_factory=list)

    @field_validator("cudagraph_mode", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return value.upper() if isinstance(value, str) else value

    @field_validator("cudagraph_capture_sizes")
    @classmethod
    def _not_empty(cls, value: list[int] | None) -> list[int] | None:
        if value is not None and not value:
            raise ValueError("cudagraph_capture_sizes should contain at least one element when using cuda graph.")
        return value


class SpeculativeConfig(_Strict):
    """The keys of `--speculative-config` that the simulator reads, and those that it lets pass."""

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: _Positive | None = None
    enforce_eager: bool | None = None
    disable_padded_drafter_batch: bool = False
    draft_sample_method: str | None = None
    rejection_sample_method: str | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    suffix_decoding_max_tree_depth: int | None = None
    suffix_decoding_max_spec_factor: float | None = None
    suffix_decoding_min_token_prob: float | None = None
    draft_tensor_parallel_size: int | None = None


class CacheConfig(_Strict):
    gpu_memory_utilization: float = Field(gt=0, le=1)


class SchedulerConfig(_Strict):
    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)

    @model_validator(mode="after")
    def _budget_holds_all(self) -> SchedulerConfig:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be greater than or equal to "
                f"max_num_seqs ({self.max_num_seqs})."
            )
        return self


class ParallelConfig(_Strict):
    tensor_parallel_size: Literal[1, 2, 4, 8, 16]


class ModelConfig(_Strict):
    max_model_len: int = Field(ge=1)


class AdditionalConfig(BaseModel):
    """`--additional-config`: unknown keys are ignored at every level, without a word."""

    class Compilation(BaseModel):
        enable_static_kernel: bool = False

    class Prefetch(BaseModel):
        enabled: bool = False

    ascend_compilation_config: Compilation = Compilation()
    weight_prefetch_config: Prefetch = Prefetch()
    pa_shape_list: list[int] = Field(default_factory=list)
    enable_cpu_binding: bool = False
    enable_flashcomm1: bool = False
    enable_matmul_allreduce: bool = False


def configure(flags: Flags, env: Mapping[str, str], libraries: Iterable[str], system: System) -> ServingConfig:
    """The effective configuration.

    `libraries` are paths mapped into the process: a preloaded allocator counts only when it is really there.
    Raises ConfigRejected with the front end's text, EngineFailed for an env variable that a lower layer refuses.
    """
    compilation = _checked(CompilationConfig, flags.compilation_config)
    additional = _checked(AdditionalConfig, flags.additional_config)
    _checked(CacheConfig, {"gpu_memory_utilization": flags.gpu_memory_utilization})
    sizes = {"max_num_seqs": flags.max_num_seqs, "max_num_batched_tokens": flags.max_num_batched_tokens}
    _checked(SchedulerConfig, sizes)
    _checked(ParallelConfig, {"tensor_parallel_size": flags.tensor_parallel_size})
    max_model_len = flags.max_model_len or system.cache.max_model_len
    _checked(ModelConfig, {"max_model_len": max_model_len})
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
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_model_len=max_model_len,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        graph_mode=mode,
        capture_sizes=capture_sizes,
        truncated_capture_size=_truncated(flags, compilation, capture_sizes, speculation),
        speculation=speculation,
        static_kernel_asked=additional.ascend_compilation_config.enable_static_kernel,
        weight_prefetch=additional.weight_prefetch_config.enabled,
        pa_shapes=tuple(additional.pa_shape_list),
        cpu_binding=additional.enable_cpu_binding,
        allocator=_allocator(env, system),
        jemalloc=any("jemalloc" in path for path in libraries),
        hccl_op_expansion_mode=_expansion_mode(env),
        hccl_buffsize_mb=_integer(env, "HCCL_BUFFSIZE", 1, 2**20),
        local_world_size=_integer(env, "LOCAL_WORLD_SIZE", 1, 2**20),
        aclnn_cache_limit=_integer(env, "ACLNN_CACHE_LIMIT", 1, 10_000_000),
        omp_num_threads=_integer(env, "OMP_NUM_THREADS", 1, 2**20),
        cpu_affinity=_integer({"CPU_AFFINITY_CONF": env.get("CPU_AFFINITY_CONF", "0")[:1]}, "CPU_AFFINITY_CONF", 0, 2)
        or 0,
        flashcomm=_switch(env, "VLLM_ASCEND_ENABLE_FLASHCOMM1") or additional.enable_flashcomm1,
        matmul_allreduce=_switch(env, "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE") or additional.enable_matmul_allreduce,
        task_queue=_task_queue(env),
        batch_memcpy=_switch(env, "VLLM_ASCEND_ENABLE_BATCH_MEMCPY"),
    )


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


def _allocator(env: Mapping[str, str], system: System) -> Allocator:
    asked = parse_allocator(env.get("PYTORCH_NPU_ALLOC_CONF", ""))
    if not asked.page_size_1g or system.stack.large_pages:
        return asked
    return asked.model_copy(update={"page_size_1g": False, "large_pages_refused": True})


def _truncated(
    flags: Flags, compilation: CompilationConfig, sizes: tuple[int, ...], speculation: Speculation | None
) -> int | None:
    listed = compilation.cudagraph_capture_sizes
    drafts = speculation.draft_tokens if speculation else 0
    asked = largest_asked_size(None if listed is None else tuple(listed), flags.max_num_seqs, drafts)
    return sizes[-1] if sizes and sizes[-1] < asked else None


def _checked(model: type[M], content: Mapping[str, Any]) -> M:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigRejected(str(error)) from error


def _speculation(content: dict[str, Any] | None, system: System) -> Speculation | None:
    if content is None:
        return None
    asked = _checked(SpeculativeConfig, content)
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
    listed = compilation.cudagraph_capture_sizes
    drafts = speculation.draft_tokens if speculation else 0
    try:
        return effective_capture_sizes(
            None if listed is None else tuple(listed), flags.max_num_seqs, drafts, flags.max_num_batched_tokens
        )
    except ValueError as error:
        raise ConfigRejected(str(error)) from error


def _integer(env: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    text = env.get(name)
    if text is None:
        return None
    value = int(text) if text.strip().isdecimal() else None
    if value is None or not low <= value <= high:
        raise _invalid_env(name, text, f"an integer in [{low}, {high}]")
    return value


def _switch(env: Mapping[str, str], name: str) -> bool:
    return bool(_integer(env, name, 0, 1))


def _task_queue(env: Mapping[str, str]) -> int:
    value = _integer(env, "TASK_QUEUE_ENABLE", 0, 2)
    return 1 if value is None else value


def _expansion_mode(env: Mapping[str, str]) -> str | None:
    mode = env.get("HCCL_OP_EXPANSION_MODE")
    if mode is not None and mode not in EXPANSION_MODES:
        raise _invalid_env("HCCL_OP_EXPANSION_MODE", mode, " or ".join(EXPANSION_MODES))
    return mode


def _invalid_env(name: str, text: str, expected: str) -> EngineFailed:
    return EngineFailed(
        "RuntimeError",
        "[Config_Error_Invalid_Environment_Variable(EI0001)] "
        f"Value {text} for environment variable {name} is invalid. Expected value: {expected}.",
        "init_device",
    )
