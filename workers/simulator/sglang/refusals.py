"""What SGLang's own checks refuse, before a device is touched or when DeepEP is set up."""

from __future__ import annotations

from collections.abc import Mapping

from workers.simulator.device.environment import integer
from workers.simulator.faults import ConfigRejected, EngineFailed
from workers.simulator.model.system import System
from workers.simulator.sglang.flags import Flags

ALGORITHMS = ("NEXTN", "EAGLE", "EAGLE3", "DSPARK", "DFLASH", "NGRAM", "STANDALONE")
WITH_DRAFT_MODEL = ("EAGLE3", "DFLASH", "STANDALONE")
DSPARK_BLOCK = 6  # of the checkpoint: report C
LONG_SEQUENCE_TOKENS = 131072  # DeepEP's MAX_TOTAL_TOKENS


def check_arguments(flags: Flags, env: Mapping[str, str], system: System) -> None:
    """Sizes that must fit each other. Raises ConfigRejected."""
    _positive("tp_size", flags.tp_size)
    _positive("dp_size", flags.dp_size)
    _positive("ep_size", flags.ep_size)
    _positive("page_size", flags.page_size)
    _positive("max_running_requests", flags.max_running_requests)
    _positive("max_prefill_tokens", flags.max_prefill_tokens)
    _positive("context_length", flags.context_length)
    if flags.chunked_prefill_size is not None and flags.chunked_prefill_size < -1:
        raise ConfigRejected(f"chunked_prefill_size must be positive or -1, got {flags.chunked_prefill_size}")
    share = flags.mem_fraction_static
    if share is not None and not 0 < share < 1:
        raise ConfigRejected(f"mem_fraction_static must be between 0 and 1, got {share}")
    if flags.enable_hierarchical_cache and flags.disable_radix_cache:
        raise ConfigRejected(
            "The arguments enable-hierarchical-cache and disable-radix-cache are mutually exclusive and cannot be used "
            "at the same time. Please use only one of them."
        )
    if flags.cuda_graph_bs_decode is not None and min(flags.cuda_graph_bs_decode) < 1:
        raise ConfigRejected("cuda_graph_bs_decode must hold positive batch sizes")
    if flags.context_length is not None and flags.context_length > system.cache.max_model_len:
        raise ConfigRejected(
            f"User-specified context_length ({flags.context_length}) is greater than the derived context_length "
            f"({system.cache.max_model_len}). This may lead to incorrect model outputs or CUDA errors."
        )
    _check_ranks(flags, env)


def check_speculation(flags: Flags, system: System) -> None:
    """Algorithm and draft tokens. Raises ConfigRejected."""
    name = flags.speculative_algorithm
    if name not in ALGORITHMS:
        raise ConfigRejected(f"Unknown speculative decoding method: {name}. Available: {', '.join(ALGORITHMS)}")
    if name == "NGRAM":
        raise ConfigRejected("Ngram speculative decoding only supports CUDA device.")
    if name in WITH_DRAFT_MODEL and flags.speculative_draft_model_path is None:
        raise ConfigRejected(f"{name} requires --speculative-draft-model-path")
    if name == "DSPARK":
        _check_dspark(flags)
    elif (steps := flags.speculative_num_steps) is not None:
        branches = flags.speculative_eagle_topk or 1
        rows = flags.speculative_num_draft_tokens
        if branches == 1 and rows is not None and rows != steps + 1:
            raise ConfigRejected(
                f"speculative_num_draft_tokens ({rows}) must be speculative_num_steps + 1 ({steps + 1}) when "
                "speculative_eagle_topk == 1"
            )
    if name.casefold() not in (known.casefold() for known in system.speculation.methods):
        raise ConfigRejected(f"Unsupported speculative method: '{name}': the checkpoint has no such draft layers")


def check_long_sequences(env: Mapping[str, str]) -> None:
    """DeepEP's rounds for long prompts. Raises EngineFailed."""
    rounds, tokens = env.get("DEEPEP_NORMAL_LONG_SEQ_ROUND"), env.get("DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS")
    if (rounds is None) != (tokens is None):
        raise _deepep("Assertion failed: roundSet == tokensSet")
    count = integer(env, "DEEPEP_NORMAL_LONG_SEQ_ROUND", 1, 256) or 1
    each = integer(env, "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS", 32, 8192) or 0
    if count * each > LONG_SEQUENCE_TOKENS:
        raise _deepep(
            f"DEEPEP_NORMAL_LONG_SEQ_ROUND * DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS ({count * each}) must not exceed "
            f"MAX_TOTAL_TOKENS ({LONG_SEQUENCE_TOKENS})"
        )


def _check_ranks(flags: Flags, env: Mapping[str, str]) -> None:
    replicas = flags.attn_dp_size or (flags.dp_size if flags.enable_dp_attention else 1)
    if flags.tp_size % replicas:
        raise ConfigRejected(f"AssertionError: tp_size ({flags.tp_size}) must be divisible by dp_size ({replicas})")
    if flags.tp_size % flags.ep_size:
        raise ConfigRejected(
            f"AssertionError: tp_size ({flags.tp_size}) must be divisible by ep_size ({flags.ep_size})"
        )
    shared = flags.enable_dp_attention or flags.attn_dp_size is not None
    world = flags.tp_size * (flags.pp_size or 1) * (1 if shared else flags.dp_size)
    visible = env.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is not None and world > len(visible.split(",")):
        raise ConfigRejected(
            f"world size ({world}) must be less than or equal to the number of visible devices "
            f"({len(visible.split(','))})"
        )


def _check_dspark(flags: Flags) -> None:
    rows, block = flags.speculative_num_draft_tokens, flags.speculative_dspark_block_size or DSPARK_BLOCK
    if rows is not None and rows != block + 1:
        raise ConfigRejected(
            f"DSpark speculative_num_draft_tokens must equal speculative_dspark_block_size + 1 ({block + 1}), "
            f"got {rows}"
        )
    if flags.enable_dp_attention and not flags.enable_dp_lm_head:
        raise ConfigRejected("DSpark with dp attention requires --enable-dp-lm-head")


def _positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ConfigRejected(f"AssertionError: {name} must be positive, got {value}")


def _deepep(message: str) -> EngineFailed:
    return EngineFailed("RuntimeError", message, "deep_ep_cpp.Buffer")
