"""Kernels of a decode step: replayed in a graph, of static or dynamic shape, whole or in pieces."""

from __future__ import annotations

from workers.simulator.model.settings import GraphMode, ServingConfig
from workers.simulator.model.system import System

PIECEWISE_LAUNCHES = 2.0  # attention of each layer is launched from the host; assumed
# report A, row graph warm-up: -0.2 to -0.3 ms with three runs before capture, "largest at low concurrency".
COLD_BY_WARMUPS = {0: 1.2, 1: 1.0, 2: 0.4}
COLD_PER_SEQUENCE = 0.25
ATTENTION_EFFICIENCY = 0.5  # share of the bandwidth at which cached tokens are read; assumed


def nodes_ms(system: System) -> float:
    """Starts and tails of small kernels."""
    return system.network.layers * system.network.operators * system.stack.node_us / 1e3


def dynamic_shapes_ms(system: System, config: ServingConfig) -> float:
    """Workspace sizing at replay, which kernels compiled for a static shape do not need."""
    network = system.network
    if config.static_kernel:
        return 0.0
    return network.layers * network.dynamic_operators * system.stack.resize_us / 1e3


def rows_ms(system: System, rows: int) -> float:
    """What rows beyond the first add beside weights. Padded rows count, but fetch no expert."""
    return system.network.row_us * (rows - 1) / 1e3


def attention_ms(system: System, config: ServingConfig, context_tokens: int) -> float:
    """Reading the KV cache of all sequences."""
    cache = system.cache
    read = cache.kv_bytes_per_token if cache.read_bytes_per_token is None else cache.read_bytes_per_token
    size = context_tokens * read / config.tensor_parallel
    return size / (system.chip.bandwidth_gb_s * 1e6 * ATTENTION_EFFICIENCY)


def graph_ms(system: System, config: ServingConfig, sequences: int) -> float:
    """What a graph costs over an ideal one: pieces launched from the host, or too few warm-up runs."""
    time = 0.0
    if config.graph_mode is GraphMode.PIECEWISE:
        time += system.network.layers * PIECEWISE_LAUNCHES * system.stack.launch_us / 1e3
    cold = COLD_BY_WARMUPS.get(config.graph_warmups, 0.0)
    return time + system.stack.cold_graph_ms * cold / (1 + COLD_PER_SEQUENCE * (sequences - 1))
