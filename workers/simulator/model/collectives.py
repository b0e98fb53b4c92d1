"""Collectives of a step: a fixed cost each, and bytes over the link."""

from __future__ import annotations

import math

from workers.simulator.model.experts import ACTIVATION_BYTES, bandwidth_use, hidden_share, message_bytes
from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import System

# Fixed cost relative to two ranks; a third and fourth rank leave the card. Assumed.
BY_RANKS = {1: 0.0, 2: 1.0, 4: 1.25, 8: 1.5, 16: 1.8}
CHUNK_US = 6.0  # each further piece of a message that is larger than its buffer; assumed
AIV_LARGE_BYTES = 2**20  # above it the vector cores are missed by the computation; assumed
AIV_LARGE = 1.05


def collectives_ms(system: System, config: ServingConfig, rows: int, sampled: int) -> float:
    """All all-reduces of a step's rows, and the all-gather of the logits of those that are sampled.

    The latter is O(rows x vocabulary), says report A. Of a prompt only the last token is sampled.
    """
    ranks, network = config.tensor_parallel, system.network
    attention = experts = _all_reduce_us(system, config, rows, ranks)
    if config.expert_parallel:  # dispatch and combine over all ranks take the place of an all-reduce
        everywhere = _all_reduce_us(system, config, rows * config.data_parallel, ranks * config.data_parallel)
        experts = everywhere * (1.0 if system.mixture is None else system.mixture.exchange)
    layer = (network.collectives - 1) * attention + experts
    gathered = sampled * network.vocabulary * ACTIVATION_BYTES * (ranks - 1) / ranks
    last = _fixed_us(system, config, ranks) + _transfer_us(system, config, gathered)
    return (network.layers * layer + last) * (1 - hidden_share(system, config)) / 1e3


def _all_reduce_us(system: System, config: ServingConfig, rows: int, ranks: int) -> float:
    message = message_bytes(system, rows)
    transfer = _transfer_us(system, config, message * 2 * (ranks - 1) / ranks)
    return _fixed_us(system, config, ranks) + transfer / bandwidth_use(system, config, message)


def _fixed_us(system: System, config: ServingConfig, ranks: int) -> float:
    one = system.stack.aiv_collective_us if config.aiv else system.stack.collective_us
    return one * BY_RANKS.get(ranks, BY_RANKS[16])


def _transfer_us(system: System, config: ServingConfig, size: float) -> float:
    pieces = math.ceil(size / (config.buffer_mb * 2**20))
    time = size / (system.chip.link_gb_s * 1e3) + CHUNK_US * (pieces - 1)
    return time * AIV_LARGE if config.aiv and size > AIV_LARGE_BYTES else time
