"""What a simulated SGLang server says while it starts, serves and dies: SGLang's and torch_npu's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.simulator.faults import EngineFailed
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.settings import Role
from workers.simulator.sglang.environment import warnings
from workers.simulator.sglang.flags import Flags
from workers.simulator.sglang.server_log import ServerLog
from workers.simulator.start.progress import bar


class SglangNarrator:
    """A `Narrator` for one SGLang server."""

    def __init__(self, flags: Flags, env: Mapping[str, str], log: ServerLog) -> None:
        self._flags = flags
        self._env = env
        self._log = log

    def rejected(self, message: str) -> None:
        self._log.rejected(message)

    def accepted(self, memory: MemoryModel) -> None:
        for text in warnings(self._env):
            self._log.front(text)
        arguments = server_args(self._flags, memory)
        self._log.front(f"server_args=ServerArgs({', '.join(f'{k}={v!r}' for k, v in arguments.items())})")
        if self._flags.moe_a2a_backend == "deepep" and self._flags.deepep_mode == "normal":
            self._log.front("Cuda graph is disabled because deepep_mode=`normal`")
        self._log.say("Init torch distributed begin.")
        self._log.say(f"Init torch distributed ends. mem usage={memory.non_torch:.2f} GB")

    def loading(self, memory: MemoryModel) -> None:
        self._log.say(f"Load weight begin. avail mem={memory.free_at_start:.2f} GB")
        if memory.config.allocator.large_pages_refused:
            self._log.native(
                "Warning: The application for 1G large-page physical memory failed. Using the HUGE_MEM memory page "
                "allocation method may result in performance degradation."
            )

    def weights_progress(self, done: int, total: int, seconds: float) -> None:
        self._log.progress(bar("Multi-thread loading shards", done, total, seconds), ended=done == total)

    def loaded(self, memory: MemoryModel, seconds: float) -> None:
        left = memory.free_at_start - memory.weights
        self._log.say(
            f"Load weight end. elapsed={seconds:.2f} s, type={memory.system.model}, avail mem={left:.2f} GB, "
            f"mem usage={memory.weights:.2f} GB."
        )

    def cache_measured(self, memory: MemoryModel) -> None:
        self._log.say(f"Memory left for the KV cache: {memory.kv_cache:.2f} GB")

    def cache_made(self, memory: MemoryModel) -> None:
        self._log.say(f"KV Cache is allocated. #tokens: {memory.kv_tokens}, KV size: {memory.kv_cache:.2f} GB")
        left = memory.free_at_start - memory.weights - memory.kv_cache
        self._log.say(f"Memory pool end. avail mem={left:.2f} GB")
        config = memory.config
        if config.hierarchical_cache:
            self._log.say(
                f"Allocating {config.host_cache_ratio * memory.kv_cache:.2f} GB host memory for the host cache."
            )

    def capturing(self, memory: MemoryModel) -> None:
        config = memory.config
        if not config.capture_sizes:
            self._log.say("Capture npu graph is skipped: every step runs eagerly")
            return
        rows = 1 + config.draft_tokens
        batches = [size // rows for size in config.capture_sizes]
        left = memory.free_at_start - memory.desired
        self._log.say(f"Capture npu graph begin. This can take up to several minutes. avail mem={left:.2f} GB")
        self._log.say(f"Capture npu graph bs {batches}")

    def capture_progress(self, memory: MemoryModel, done: int, total: int, seconds: float) -> None:
        batch = memory.config.capture_sizes[-done] // (1 + memory.config.draft_tokens)  # largest first
        self._log.progress(bar(f"Capturing batches (bs={batch})", done, total, seconds), ended=done == total)

    def captured(self, memory: MemoryModel, seconds: float) -> None:
        self._log.say(f"Capture npu graph end. Time elapsed: {seconds:.2f} s. mem usage={memory.graphs:.2f} GB.")

    def started(self, memory: MemoryModel) -> None:
        config = memory.config
        self._log.say(
            f"max_total_num_tokens={memory.kv_tokens}, chunked_prefill_size={config.max_num_batched_tokens}, "
            f"max_prefill_tokens={self._flags.max_prefill_tokens}, max_running_requests={config.max_num_seqs}, "
            f"context_len={config.max_model_len}"
        )

    def listening(self, host: str, port: int) -> None:
        self._log.uvicorn("Application startup complete.")
        self._log.uvicorn(f"Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        self._log.front("The server is fired up and ready to roll!")

    def failed(self, failure: EngineFailed) -> None:
        self._log.scheduler_failed(failure)

    def died(self, failure: EngineFailed) -> None:
        self._log.scheduler_died(failure)


def server_args(flags: Flags, memory: MemoryModel) -> dict[str, Any]:
    """Every argument with what the server made of it: its log and `/server_info` show the same."""
    config = memory.config
    rows = 1 + config.draft_tokens
    arguments = dict(flags.printed)
    arguments |= {
        "context_length": config.max_model_len,
        "mem_fraction_static": config.gpu_memory_utilization,
        "page_size": config.block_size,
        "max_running_requests": flags.max_running_requests or config.max_num_seqs * config.data_parallel,
        "disable_cuda_graph": not config.capture_sizes,
        "disable_radix_cache": not config.prefix_caching,
        "disable_overlap_schedule": not config.async_scheduling,
        "speculative_num_draft_tokens": rows if config.speculation else None,
    }
    if config.capture_sizes:
        arguments["cuda_graph_bs_decode"] = [size // rows for size in config.capture_sizes]
        arguments["cuda_graph_max_bs_decode"] = config.capture_sizes[-1] // rows
    if config.speculation and config.speculation.method == "DSPARK":
        arguments["speculative_dspark_block_size"] = config.draft_tokens
    if config.role is Role.DECODE:
        arguments["disaggregation_decode_enable_radix_cache"] = False
    return arguments
