"""A start, a life and a death in vLLM's and vllm-ascend's own words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.simulator.device.allocator_conf import completed_allocator
from workers.simulator.faults import EngineFailed
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.start.progress import bar
from workers.simulator.vllm.configure import announcements, env_warnings
from workers.simulator.vllm.flags import Flags
from workers.simulator.vllm.server_log import ServerLog

AI_CPU_GRAPHS = 6  # documented limit of collectives that the AI CPU expands


class VllmNarrator:
    """A `Narrator` for one vLLM server."""

    def __init__(self, flags: Flags, env: Mapping[str, str], log: ServerLog) -> None:
        self._flags = flags
        self._env = env
        self._log = log

    def rejected(self, message: str) -> None:
        self._log.rejected(message)

    def accepted(self, memory: MemoryModel) -> None:
        config, system = memory.config, memory.system
        stack = system.stack
        for text in env_warnings(self._env):
            self._log.warn(text, "envs.py:1890", "APIServer")
        self._log.say(
            f"vLLM API server version {stack.engine_version} (simulated {system.chip.name})",
            "utils.py:325",
            "APIServer",
        )
        self._log.say(f"non-default args: {_given(self._flags)}", "utils.py:278", "APIServer")
        for text in announcements(self._flags, self._env):
            self._log.say(text, "ascend_config.py:284", "APIServer")
        if (options := completed_allocator(self._env.get("PYTORCH_NPU_ALLOC_CONF", ""))) is not None:
            self._log.say(f"Set PYTORCH_NPU_ALLOC_CONF={options}", "platform.py:759", "APIServer")
        if config.truncated_capture_size is not None:
            text = f"Truncating max_cudagraph_capture_size to {config.truncated_capture_size}"
            self._log.warn(text, "vllm.py:1719", "APIServer")
        most = config.max_num_seqs * (1 + config.draft_tokens)
        if config.capture_sizes and config.capture_sizes[-1] < most:
            self._log.warn(
                f"max_cudagraph_capture_size ({config.capture_sizes[-1]}) is smaller than the potential max tokens "
                f"({most}) of a decode step: larger steps run eagerly",
                "vllm.py:1294",
                "APIServer",
            )
        drafts = config.speculation
        speculation = (
            f"SpeculativeConfig(method='{drafts.method}', model='{system.model}', "
            f"num_spec_tokens={drafts.draft_tokens})"
            if drafts
            else "None"
        )
        self._log.say(
            f"Initializing a V1 LLM engine (v{stack.engine_version}) with config: model='{system.model}', "
            f"speculative_config={speculation}, max_seq_len={config.max_model_len}, "
            f"tensor_parallel_size={config.tensor_parallel}, pipeline_parallel_size=1, "
            f"data_parallel_size={config.data_parallel}, "
            f"compilation_config={{'cudagraph_mode': <CUDAGraphMode.{config.graph_mode}: {config.graph_mode.number}>, "
            f"'cudagraph_capture_sizes': {list(config.capture_sizes)}, "
            f"'max_cudagraph_capture_size': {max(config.capture_sizes, default=0)}}}",
            "core.py:111",
        )

    def loading(self, memory: MemoryModel) -> None:
        self._log.say("Starting to load model " + memory.system.model + "...", "model_runner_v1.py:2518")
        if memory.config.allocator.large_pages_refused:
            self._log.native(
                "Warning: The application for 1G large-page physical memory failed. Using the HUGE_MEM memory page "
                "allocation method may result in performance degradation."
            )

    def weights_progress(self, done: int, total: int, seconds: float) -> None:
        text = bar("Loading safetensors checkpoint shards", done, total, seconds)
        self._log.progress(text.replace("%|", "% Completed |", 1), ended=done == total)

    def loaded(self, memory: MemoryModel, seconds: float) -> None:
        self._log.say(f"Loading weights took {seconds:.2f} seconds", "default_loader.py:384")
        self._log.say(f"Loading model weights took {memory.weights:.4f} GB", "model_runner_v1.py:2544")

    def cache_measured(self, memory: MemoryModel) -> None:
        self._log.say(f"Available KV cache memory: {memory.kv_cache:.2f} GiB", "worker.py:745")

    def cache_made(self, memory: MemoryModel) -> None:
        length = memory.config.max_model_len
        self._log.say(f"GPU KV cache size: {memory.kv_tokens:,} tokens", "kv_cache_utils.py:1316")
        self._log.say(
            f"Maximum concurrency for {length:,} tokens per request: {memory.kv_tokens / length:.2f}x",
            "kv_cache_utils.py:1321",
        )

    def capturing(self, memory: MemoryModel) -> None:
        config = memory.config
        if not config.capture_sizes:
            self._log.say("Graphs are off: every step runs eagerly", "model_runner_v1.py:3102")
            return
        if config.static_kernel:
            self._log.say(
                "enable_static_kernel is enabled, static shape kernel will be used to accelerate aclgraph execution.",
                "compiler_interface.py:96",
            )
        count = len(config.capture_sizes)
        self._log.say(f"Capturing ACL graphs (decode, {config.graph_mode}): {count} sizes", "model_runner_v1.py:3102")
        if config.hccl_op_expansion_mode == "AI_CPU" and count > AI_CPU_GRAPHS:
            self._log.warn(
                f"{count} graphs with collectives expanded on AI CPU: at most {AI_CPU_GRAPHS} of them can be in flight "
                "on a device",
                "model_runner_v1.py:3108",
            )

    def capture_progress(self, memory: MemoryModel, done: int, total: int, seconds: float) -> None:
        text = bar(f"Capturing ACL graphs (decode, {memory.config.graph_mode})", done, total, seconds)
        self._log.progress(text, ended=done == total)

    def captured(self, memory: MemoryModel, seconds: float) -> None:
        text = f"Graph capturing finished in {seconds:.0f} secs, took {memory.graphs:.2f} GiB"
        self._log.say(text, "model_runner_v1.py:3160")

    def started(self, memory: MemoryModel) -> None:
        config = memory.config
        self._log.say(
            f"Free memory on device ({memory.free_at_start:.2f}/{memory.visible:.2f} GiB) on startup. Desired GPU "
            f"memory utilization is ({config.gpu_memory_utilization:g}, {memory.desired:.2f} GiB). Actual usage: "
            f"{memory.weights:.2f} GiB for weights, {memory.activation:.2f} GiB for peak activation, "
            f"{memory.non_torch:.2f} GiB for non-torch memory, {memory.graphs:.2f} GiB for NPU graph memory.",
            "worker.py:753",
        )

    def listening(self, host: str, port: int) -> None:
        self._log.say(f"Starting vLLM server on http://{host}:{port}", "launcher.py:29", "APIServer")
        self._log.say("Application startup complete.", "on.py:62", "APIServer")

    def failed(self, failure: EngineFailed) -> None:
        self._log.engine_failed(failure)

    def died(self, failure: EngineFailed) -> None:
        self._log.engine_died(failure)


def _given(flags: Flags) -> dict[str, Any]:
    """The echo of the command line, unknown keys of JSON flags and all: no proof that anything is read."""
    defaults = {name: field.default for name, field in Flags.model_fields.items()}
    return {name: value for name, value in flags.model_dump().items() if value != defaults[name] and value}
