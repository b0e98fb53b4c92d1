"""A start from weights to ready: the phases in order, each with its log lines and its checks."""

from __future__ import annotations

from collections.abc import Mapping

from workers.simulator.configure import env_warnings
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
    if "PYTORCH_NPU_ALLOC_CONF" not in env:
        log.say("Set PYTORCH_NPU_ALLOC_CONF=expandable_segments:True", "platform.py:171", "APIServer")
    for key in sorted(flags.additional_config):
        log.say(f"AscendConfig.{key} is set from additional_config", "ascend_config.py:58", "APIServer")
    if config.static_kernel_asked and not config.static_kernel:
        log.warn(
            f"static kernels need FULL or FULL_DECODE_ONLY, not {config.graph_mode}: enable_static_kernel is False",
            "platform.py:601",
            "APIServer",
        )
    most = config.max_num_seqs * (1 + config.draft_tokens)
    if config.capture_sizes and config.capture_sizes[-1] < most:
        log.warn(
            f"max_cudagraph_capture_size ({config.capture_sizes[-1]}) is smaller than the potential max tokens ({most})"
            " of a decode step: larger steps run eagerly",
            "vllm.py:1294",
            "APIServer",
        )
    log.say(
        f"Initializing a V1 LLM engine (v{stack.engine_version}) with config: model='{system.model}', "
        f"speculative_config={flags.speculative_config}, max_seq_len={config.max_model_len}, "
        f"tensor_parallel_size={config.tensor_parallel}, cudagraph_mode={config.graph_mode}, "
        f"cudagraph_capture_sizes={list(config.capture_sizes)}, max_num_seqs={config.max_num_seqs}, "
        f"max_num_batched_tokens={config.max_num_batched_tokens}",
        "core.py:111",
    )


def _capture(memory: MemoryModel, log: ServerLog) -> None:
    config = memory.config
    if not config.capture_sizes:
        log.say("Graphs are off: every step runs eagerly", "model_runner_v1.py:3102")
        return
    if config.static_kernel:
        log.say("static shape kernel will be used to accelerate aclgraph execution", "acl_graph.py:96")
    count = len(config.capture_sizes)
    log.say(f"Capturing ACL graphs (decode, {config.graph_mode}): {count} sizes", "model_runner_v1.py:3102")
    check_capture(memory)
    log.say(
        f"Graph capturing finished in {count * CAPTURE_S_PER_SIZE:.0f} secs, took {memory.graphs:.2f} GiB",
        "model_runner_v1.py:3160",
    )
