"""Computing prompt tokens: arithmetic, attention over what is cached, collectives of large messages."""

from __future__ import annotations

from workers.simulator.model.collectives import collectives_ms
from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import System

PREFETCH_GAIN = 0.985  # report A, row weight prefetch: "TTFT better"; size assumed
FIXED_MS = 15.0  # launches that do not hide behind the computation; assumed
ATTENTION_EFFICIENCY = 0.35  # of the chip's arithmetic; assumed


def prompt_ms(system: System, config: ServingConfig, tokens: int, attended: int) -> float:
    """Device time of a step's prompt tokens; `attended` sums the tokens that each of them attends to."""
    chip, network = system.chip, system.network
    rate = chip.tflops * 1e9 * config.tensor_parallel  # flop per ms
    time = tokens * network.gflop_per_token * 1e9 / (rate * network.prompt_efficiency)
    if config.weight_prefetch:
        time *= PREFETCH_GAIN
    time += attended * network.attention_flop / (rate * ATTENTION_EFFICIENCY)
    return FIXED_MS + time + collectives_ms(system, config, tokens, 1)
