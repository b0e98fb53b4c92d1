"""Weight traffic: what a step must read from HBM, and how long that takes."""

from __future__ import annotations

from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import System, Weights

# report A, row weight prefetch: -0.1 / -0.2 ms at c1 / c4; share of the experts' traffic that it hides.
PREFETCH_SHARE = 0.077


def distinct_experts(weights: Weights, tokens: int) -> float:
    """How many experts a layer needs for so many tokens: each token draws `experts_per_token` of them.

    Expected coverage of independent draws from `effective_experts`: n (1 - (1 - k/n)^tokens).
    """
    share = weights.experts_per_token / weights.effective_experts
    return weights.effective_experts * (1 - (1 - min(share, 1.0)) ** max(tokens, 1))


def weight_bytes(system: System, config: ServingConfig, tokens: int) -> tuple[float, float]:
    """Bytes that one rank must read in a step of so many tokens: dense ones, and experts."""
    weights = system.weights
    experts = distinct_experts(weights, tokens * config.data_parallel) * weights.expert_gb
    ranks = config.tensor_parallel * (config.data_parallel if config.expert_parallel else 1)
    return weights.dense_gb * 1e9 / config.tensor_parallel, experts * 1e9 / ranks


def weights_ms(system: System, config: ServingConfig, tokens: int) -> float:
    """Time of that traffic. Prefetch fires only above the engine's threshold of tokens."""
    dense, experts = weight_bytes(system, config, tokens)
    bandwidth, stack = system.chip.bandwidth_gb_s * 1e6, system.stack
    expert_time = experts / (bandwidth * stack.expert_efficiency)
    if config.weight_prefetch and tokens >= config.prefetch_token_threshold:
        expert_time *= 1 - PREFETCH_SHARE
    return dense / (bandwidth * stack.dense_efficiency) + expert_time


def floor_ms(system: System, config: ServingConfig, tokens: int) -> float:
    """No step is faster than its weight bytes over the chip's full bandwidth."""
    return sum(weight_bytes(system, config, tokens)) / (system.chip.bandwidth_gb_s * 1e6)
