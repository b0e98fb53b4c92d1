"""A start from weights to ready: the phases in order, each with its words and its checks."""

from __future__ import annotations

from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.start.narrator import Narrator
from workers.simulator.start.start_checks import (
    check_capture,
    check_device,
    check_kv_cache,
    check_profile_run,
    check_weights,
)

# Seconds that a real start would spend, for the log alone: the simulation does not wait.
WEIGHTS_S_PER_GIB = 0.15
CAPTURE_S_PER_SIZE = 3.3


def start_engine(memory: MemoryModel, narrator: Narrator) -> None:
    """Walk through the phases of a start. Raises EngineFailed at the first one that the configuration breaks."""
    narrator.accepted(memory)
    check_device(memory)
    narrator.loading(memory)
    check_weights(memory)
    narrator.loaded(memory, memory.weights * WEIGHTS_S_PER_GIB)
    check_profile_run(memory)
    narrator.cache_measured(memory)
    check_kv_cache(memory)
    narrator.cache_made(memory)
    narrator.capturing(memory)
    if sizes := memory.config.capture_sizes:
        check_capture(memory)
        narrator.captured(memory, len(sizes) * CAPTURE_S_PER_SIZE)
    narrator.started(memory)
