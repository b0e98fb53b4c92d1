"""A start from weights to ready: the phases in order, each with its log lines and its checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.simulator.allocator_conf import completed_allocator
from workers.simulator.configure import announcements, env_warnings
from workers.simulator.flags import Flags
from workers.simulator.memory_model import MemoryModel
from workers.simulator.server_log import ServerLog
from workers.simulator.settings import ServingConfig
from workers.simulator.start_checks import (
    check_capture,
    check_device,
    check_kv_cache,
    check_profile_run,
    check_weights,
)
from workers.simulator.system import System

# Seconds that a real start would spend, for the log alone: the simulation does not wait.
WEIGHTS_S_PER_GIB = 0.15
CAPTURE_S_PER_SIZE = 3.3


def start_engine(flags: Flags, env: Mapping[str, str], memory: MemoryModel, log: ServerLog) -> None:
    """Walk through the phases of a start. Raises EngineFailed at the first one that the configuration breaks."""
    config, system = memory.config, memory.system
    _say_configuration(flags, env, config, system, log)
    check_device(memory)
    log.say("Starting to load model " + system.model + "...", "model_runner_v1.py:2518")
    if config.allocator.large_pages_refused:
        log.native(
            "Warning: The application for 1G large-page physical memory failed. Using the HUGE_MEM memory page "
            "allocation method may result in performance degradation."
        )
    check_weights(memory)
    seconds = memory.weights * WEIGHTS_S_PER_GIB
    log.say(f"Loading weights took {seconds:.2f} seconds", "default_loader.py:384")
    log.say(f"Loading model weights took {memory.weights:.4f} GB", "model_runner_v1.py:2544")
    check_profile_run(memory)
    log.say(f"Available KV cache memory: {memory.kv_cache:.2f} GiB", "worker.py:745")
    check_kv_cache(memory)
    log.say(f"GPU KV cache size: {memory.kv_tokens:,} tokens", "kv_cache_utils.py:1316")
    at_once = memory.kv_tokens / config.max_model_len
    log.say(
        f"Maximum concurrency for {config.max_model_len:,} tokens per request: {at_once:.2f}x", "kv_cache_utils.py:1321"
    )
    _capture(memory, log)
    log.say(
        f"Free memory on device ({memory.free_at_start:.2f}/{memory.visible:.2f} GiB) on startup. Desired GPU memory "
        f"utilization is ({config.gpu_memory_utilization:g}, {memory.desired:.2f} GiB). Actual usage: "
        f"{memory.weights:.2f} GiB for weights, {memory.activation:.2f} GiB for peak activation, "
        f"{memory.non_torch:.2f} GiB for non-torch memory, {memory.graphs:.2f} GiB for NPU graph memory.",
        "worker.py:753",
    )


def _say_configuration(
    flags: Flags, env: Mapping[str, str], config: ServingConfig, system: System, log: ServerLog
) -> None:
    stack = system.stack
    for text in env_warnings(env):
        log.warn(text, "envs.py:1890", "APIServer")
    log.say(f"vLLM API server version {stack.engine_version} (simulated {system.chip})", "utils.py:325", "APIServer")
    log.say(f"non-default args: {_given(flags)}", "utils.py:278", "APIServer")
    for text in announcements(flags, env):
        log.say(text, "ascend_config.py:284", "APIServer")
    if (options := completed_allocator(env.get("PYTORCH_NPU_ALLOC_CONF", ""))) is not None:
        log.say(f"Set PYTORCH_NPU_ALLOC_CONF={options}", "platform.py:759", "APIServer")
    if config.truncated_capture_size is not None:
        text = f"Truncating max_cudagraph_capture_size to {config.truncated_capture_size}"
        log.warn(text, "vllm.py:1719", "APIServer")
    most = config.max_num_seqs * (1 + config.draft_tokens)
    if config.capture_sizes and config.capture_sizes[-1] < most:
        log.warn(
            f"max_cudagraph_capture_size ({config.capture_sizes[-1]}) is smaller than the potential max tokens ({most})"
            " of a decode step: larger steps run eagerly",
            "vllm.py:1294",
            "APIServer",
        )
    drafts = config.speculation
    speculation = (
        f"SpeculativeConfig(method='{drafts.method}', model='{system.model}', num_spec_tokens={drafts.draft_tokens})"
        if drafts
        else "None"
    )
    log.say(
        f"Initializing a V1 LLM engine (v{stack.engine_version}) with config: model='{system.model}', "
        f"speculative_config={speculation}, max_seq_len={config.max_model_len}, "
        f"tensor_parallel_size={config.tensor_parallel}, pipeline_parallel_size=1, data_parallel_size=1, "
        f"compilation_config={{'cudagraph_mode': <CUDAGraphMode.{config.graph_mode}: {config.graph_mode.number}>, "
        f"'cudagraph_capture_sizes': {list(config.capture_sizes)}, "
        f"'max_cudagraph_capture_size': {max(config.capture_sizes, default=0)}}}",
        "core.py:111",
    )


def _given(flags: Flags) -> dict[str, Any]:
    """The echo of the command line, unknown keys of JSON flags and all: no proof that anything is read."""
    defaults = {name: field.default for name, field in Flags.model_fields.items()}
    return {name: value for name, value in flags.model_dump().items() if value != defaults[name] and value}


def _capture(memory: MemoryModel, log: ServerLog) -> None:
    config = memory.config
    if not config.capture_sizes:
        log.say("Graphs are off: every step runs eagerly", "model_runner_v1.py:3102")
        return
    if config.static_kernel:
        log.say(
            "enable_static_kernel is enabled, static shape kernel will be used to accelerate aclgraph execution.",
            "compiler_interface.py:96",
        )
    count = len(config.capture_sizes)
    log.say(f"Capturing ACL graphs (decode, {config.graph_mode}): {count} sizes", "model_runner_v1.py:3102")
    check_capture(memory)
    log.say(
        f"Graph capturing finished in {count * CAPTURE_S_PER_SIZE:.0f} secs, took {memory.graphs:.2f} GiB",
        "model_runner_v1.py:3160",
    )
