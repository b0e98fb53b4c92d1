"""What goes wrong between the accepted configuration and a ready server, in the order of a real start."""

from __future__ import annotations

from workers.simulator.faults import DeviceOutOfMemory, EngineFailed, operator_failure
from workers.simulator.model.memory_model import MemoryModel

CONTEXT_GIB = 0.5  # what the process holds before the first weights; assumed


def check_device(memory: MemoryModel) -> None:
    """Free memory against the asked utilization. Raises EngineFailed."""
    if memory.desired > memory.free_at_start:
        share = memory.config.gpu_memory_utilization
        text = (
            f"Free memory on device ({memory.free_at_start:.2f}/{memory.visible:.2f} GiB) on startup is less than "
            f"desired GPU memory utilization ({share:g}, {memory.desired:.2f} GiB). Decrease GPU memory utilization "
            "or reduce GPU memory used by other processes."
        )
        raise EngineFailed("ValueError", text, "init_device")


def check_weights(memory: MemoryModel) -> None:
    """Weights against the die; they come in pieces of 1 GiB. Raises DeviceOutOfMemory."""
    if memory.weights + 1 > memory.free_at_start:
        pieces, left = divmod(memory.free_at_start - CONTEXT_GIB, 1.0)
        _take(memory, 1.0, pieces, left, "load_model")


def check_profile_run(memory: MemoryModel) -> None:
    """The first forward pass: operators that this chip lacks, and activations. Raises EngineFailed."""
    config = memory.config
    if config.tensor_parallel > 1 and config.matmul_allreduce:
        raise operator_failure("aclnnMatmulAllReduceAddRmsNorm", "profile_run")
    if config.tensor_parallel > 1 and config.flashcomm:
        raise operator_failure("aclnnMatmulReduceScatter", "profile_run")
    free = memory.free_at_start - memory.weights - memory.non_torch
    if free < 0:
        early = max(memory.communicator, 1.0)
        _take(memory, early, memory.weights, max(free + early, 0.0), "profile_run")
    _take(memory, memory.activation, memory.weights, free, "profile_run")


def check_kv_cache(memory: MemoryModel) -> None:
    """Whether the KV cache holds a request, and the recurrent states all sequences. Raises EngineFailed."""
    config = memory.config
    if memory.kv_cache <= 0:
        text = (
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the "
            "engine."
        )
        raise EngineFailed("ValueError", text, "get_kv_cache_configs")
    if memory.kv_tokens < config.max_model_len:
        need = config.max_model_len / memory.kv_tokens * memory.kv_cache if memory.kv_tokens else memory.visible
        text = (
            f"To serve at least one request with the model's max seq len ({config.max_model_len}), ({need:.2f} GiB KV "
            f"cache is needed, which is larger than the available KV cache memory ({memory.kv_cache:.2f} GiB). Try "
            "increasing `gpu_memory_utilization` or decreasing `max_model_len`."
        )
        raise EngineFailed("ValueError", text, "get_kv_cache_configs")
    if config.graph_mode.whole_decode and config.max_num_seqs > memory.state_blocks:
        text = (
            f"max_num_seqs ({config.max_num_seqs}) exceeds available Mamba cache blocks ({memory.state_blocks}). Each "
            "decode sequence needs one: lower max_num_seqs or raise gpu_memory_utilization."
        )
        raise EngineFailed("ValueError", text, "get_kv_cache_configs")


def check_capture(memory: MemoryModel) -> None:
    """Static kernels, graph capture and what they need. Raises EngineFailed."""
    config, stack = memory.config, memory.system.stack
    if not config.capture_sizes:
        return
    if config.task_queue == 2:
        text = (
            "Do not support TASK_QUEUE_ENABLE = 2 during NPU graph capture, please set it to 0 or 1\n"
            "[ERROR] ERR00007 PTA feature not supported"
        )
        raise EngineFailed("RuntimeError", text, "capture_model")
    if config.allocator.pin_memory_expandable_segments and not stack.pin_memory_expandable_with_graphs:
        text = "ACLGraph capture is not supported when pin_memory_expandable_segments=True"
        raise EngineFailed("RuntimeError", text, "capture_model")
    if config.static_kernel and config.tensor_parallel > 1 and config.local_world_size != config.tensor_parallel:
        found = "is not set" if config.local_world_size is None else f"is {config.local_world_size}"
        text = (
            f"'LOCAL_WORLD_SIZE' {found}: compiling static kernels on {config.tensor_parallel} ranks requires the "
            "number of local ranks"
        )
        kind = "KeyError" if config.local_world_size is None else "RuntimeError"
        raise EngineFailed(kind, text, "compile_static_kernels")
    check_dispatch(memory)
    free, allocated = memory.free_at_start - memory.desired, memory.desired - memory.non_torch
    _take(memory, memory.graphs, allocated, free, "capture_model")
    if memory.left_for_load < 0:
        late = memory.free_at_start - memory.desired - memory.graphs - memory.left_for_load
        _take(memory, late, allocated + memory.graphs, free - memory.graphs, "capture_model")


def check_dispatch(memory: MemoryModel) -> None:
    """The largest captured step against the rows that the ranks can send. Raises EngineFailed."""
    config = memory.config
    if config.dispatch_capacity is not None and config.capture_sizes[-1] > config.dispatch_capacity:
        text = (
            "Assertion failed: num_max_dispatch_tokens_per_rank >= x.size(0)\n"
            "Capture cuda graph failed: see the assertion above"
        )
        raise EngineFailed("RuntimeError", text, "capture_model")


def check_load(memory: MemoryModel, sequences: int) -> None:
    """Workspaces of a mixed batch of so many running sequences. Raises DeviceOutOfMemory."""
    if not memory.fits_load(sequences):
        allocated = memory.desired - memory.non_torch + memory.graphs
        free = max(memory.left_for_load, 0.0)
        raise DeviceOutOfMemory(memory.workspace(sequences), memory.visible, allocated, free, "execute_model")


def _take(memory: MemoryModel, wanted: float, allocated: float, free: float, stage: str) -> None:
    """One allocation; `allocated` is the allocator's so far. Raises DeviceOutOfMemory when it does not fit."""
    if wanted > free:
        raise DeviceOutOfMemory(wanted, memory.visible, allocated, max(free, 0.0), stage)
