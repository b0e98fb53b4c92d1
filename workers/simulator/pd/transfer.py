"""How long a request's state takes from a prefill to a decode server: arithmetic."""

from __future__ import annotations

from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import System

LATENCY_MS = 4.0  # registration, the last layer's tail, the first token; assumed


def transfer_ms(system: System, config: ServingConfig, prompt_tokens: int) -> float:
    """Time of the KV cache of so many tokens, and of the recurrent state; every rank sends its own part."""
    cache = system.cache
    size = prompt_tokens * cache.kv_bytes_per_token + cache.state_mib_per_sequence * 2**20
    rate = system.stack.transfer_gb_s * 1e6 * config.tensor_parallel  # bytes per ms
    return LATENCY_MS + size / rate
