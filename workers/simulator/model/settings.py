"""The effective configuration of one simulated server: what flags and env come to after the engine's own rules."""

from __future__ import annotations

from enum import StrEnum

from autotune.domain.value import Value

CAPTURE_CEILING = 512  # tokens; the platform's own ceiling where no sizes are given


class Role(StrEnum):
    """What a server does with a request: all of it, the prompt alone, or the rest."""

    SERVER = "server"
    PREFILL = "prefill"
    DECODE = "decode"


class GraphMode(StrEnum):
    """vLLM's `cudagraph_mode`."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"

    @property
    def number(self) -> str:
        """As the engine prints it behind the name."""
        return {"NONE": "0", "PIECEWISE": "1", "FULL": "2", "FULL_DECODE_ONLY": "(2, 0)"}.get(self.value, "(2, 1)")

    @property
    def whole_decode(self) -> bool:
        """Whether a decode step is one graph."""
        return self not in {GraphMode.NONE, GraphMode.PIECEWISE}

    @property
    def allows_static_kernels(self) -> bool:
        """Any mode with piecewise graphs switches static kernels off without an error."""
        return self in {GraphMode.FULL, GraphMode.FULL_DECODE_ONLY}


class Allocator(Value):
    """`PYTORCH_NPU_ALLOC_CONF` after the platform's own additions.

    `large_pages_refused`: pages of 1 GB were asked for, and the host gives none.
    """

    expandable_segments: bool = True
    page_size_1g: bool = False
    large_pages_refused: bool = False
    base_addr_aligned_kb: int = 16
    roundup_power2_divisions: int | None = None
    pinned_use_background_threads: bool = False
    pin_memory_expandable_segments: bool = False


class Speculation(Value):
    """Draft tokens a step and where they come from."""

    method: str
    draft_tokens: int


class ServingConfig(Value):
    """Everything that the cost model, the memory model and the faults look at.

    `capture_sizes` are tokens a step, ascending, empty without graphs; `truncated_capture_size` is the largest of
    them where more was asked for. None stands for the engine's default. `data_parallel` copies of attention run in
    lockstep in one server; `max_num_seqs`, `max_num_batched_tokens` and `dispatch_capacity` (rows) are those of one
    of them, `block_size` is in tokens.
    """

    role: Role = Role.SERVER
    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    block_size: int = 128
    prefix_caching: bool = True
    chunked_prefill: bool = True
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 262144
    gpu_memory_utilization: float = 0.92
    graph_mode: GraphMode = GraphMode.FULL_AND_PIECEWISE
    capture_sizes: tuple[int, ...] = ()
    truncated_capture_size: int | None = None
    speculation: Speculation | None = None
    static_kernel_asked: bool = False
    weight_prefetch: bool = False
    pa_shapes: tuple[int, ...] = ()
    cpu_binding: bool = False
    allocator: Allocator = Allocator()
    jemalloc: bool = False
    hccl_op_expansion_mode: str | None = None
    hccl_buffsize_mb: int | None = None
    local_world_size: int | None = None
    aclnn_cache_limit: int | None = None
    omp_num_threads: int | None = None
    cpu_affinity: int = 0
    flashcomm: bool = False
    matmul_allreduce: bool = False
    task_queue: int = 1
    batch_memcpy: bool = False
    graph_warmups: int = 1
    prefetch_token_threshold: int = 96
    hccl_algo: str | None = None
    overlap_communication: bool = False
    fused_gating: bool = False
    balanced_experts: bool = False
    fused_mc2: bool = False
    dispatch_capacity: int | None = None
    multi_stream: bool = False
    barriers: bool = False
    hierarchical_cache: bool = False
    host_cache_ratio: float = 2.0
    async_scheduling: bool = True

    @property
    def draft_tokens(self) -> int:
        return self.speculation.draft_tokens if self.speculation else 0

    @property
    def static_kernel(self) -> bool:
        """Whether static kernels are really used."""
        return self.static_kernel_asked and self.graph_mode.allows_static_kernels

    @property
    def aiv(self) -> bool:
        return self.hccl_op_expansion_mode == "AIV"

    @property
    def buffer_mb(self) -> int:
        return 200 if self.hccl_buffsize_mb is None else self.hccl_buffsize_mb

    def captured(self, tokens: int) -> int | None:
        """The graph that a step of so many tokens runs in, by its size; None: the step runs eagerly."""
        return next((size for size in self.capture_sizes if size >= tokens), None)


def default_capture_sizes(max_num_seqs: int, draft_tokens: int) -> tuple[int, ...]:
    """The platform's own grid: 1, 2, 4 and multiples of 8 up to the ceiling."""
    ceiling = min(max_num_seqs * (1 + draft_tokens), CAPTURE_CEILING)
    return tuple(s for s in (1, 2, 4, *range(8, ceiling + 1, 8)) if s <= ceiling)


def largest_asked_size(asked: tuple[int, ...] | None, max_num_seqs: int, draft_tokens: int) -> int:
    """The largest graph that the command line asks for, in tokens."""
    return min(max_num_seqs * (1 + draft_tokens), CAPTURE_CEILING) if asked is None else max(asked)


def effective_capture_sizes(
    asked: tuple[int, ...] | None, max_num_seqs: int, draft_tokens: int, max_num_batched_tokens: int
) -> tuple[int, ...]:
    """What is left after rounding up to whole decode rows of 1 + draft tokens.

    A size above the largest asked one, or above the token budget of a step, is dropped. Raises ValueError with
    the engine's text when none is left.
    """
    sizes = default_capture_sizes(max_num_seqs, draft_tokens) if asked is None else asked
    rows = 1 + draft_tokens
    ceiling = min(max(sizes), max_num_batched_tokens)
    kept = sorted({-(-size // rows) * rows for size in sizes if -(-size // rows) * rows <= ceiling})
    if not kept:
        raise ValueError(
            f"No valid cudagraph sizes after rounding to multiple of {rows} (num_speculative_tokens + 1): "
            f"sizes {list(sizes)}, largest {ceiling}. Please adjust num_speculative_tokens or "
            "cudagraph_capture_sizes."
        )
    return tuple(kept)
