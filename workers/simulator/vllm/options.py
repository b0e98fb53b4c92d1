"""What vLLM checks of its options, one class for each of its own: the names stand in its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from workers.simulator.faults import ConfigRejected
from workers.simulator.model.settings import GraphMode

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

    @property
    def listed_sizes(self) -> tuple[int, ...] | None:
        return None if self.cudagraph_capture_sizes is None else tuple(self.cudagraph_capture_sizes)


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
    data_parallel_size: int = Field(ge=1)


class ModelConfig(_Strict):
    max_model_len: int = Field(ge=1)


class AdditionalConfig(BaseModel):
    """`--additional-config`: unknown keys are ignored at every level, without a word."""

    class Compilation(BaseModel):
        enable_static_kernel: bool = False
        enable_npugraph_ex: bool = True  # the graph compiler, which builds static kernels

    class Prefetch(BaseModel):
        enabled: bool = False

    class ExpertBalance(BaseModel):
        dynamic_eplb: bool = False

    ascend_compilation_config: Compilation = Compilation()
    weight_prefetch_config: Prefetch = Prefetch()
    eplb_config: ExpertBalance = ExpertBalance()
    pa_shape_list: list[int] = Field(default_factory=list)
    enable_cpu_binding: bool = False
    enable_flashcomm1: bool = False
    enable_matmul_allreduce: bool = False
    multistream_overlap_shared_expert: bool = False

    @property
    def static_kernel(self) -> bool:
        compilation = self.ascend_compilation_config
        return compilation.enable_static_kernel and compilation.enable_npugraph_ex


def checked(model: type[M], content: Mapping[str, Any]) -> M:
    """The options as this class. Raises ConfigRejected with the engine's own form of the complaint."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigRejected(str(error)) from error
