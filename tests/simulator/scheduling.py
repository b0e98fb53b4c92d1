"""Schedulers with caches of a known size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.settings import GraphMode, ServingConfig, Speculation
from workers.simulator.model.system import load_system
from workers.simulator.serving.batching import Batcher, Output, Sequence, Step
from workers.simulator.serving.noise import Noise

SYSTEM = load_system(Path(__file__).parents[2] / "workers/simulator/systems/qwen3.5-35b-a3b-910c.yaml")
BLOCK = 16


@dataclass(frozen=True, slots=True)
class KnownMemory(MemoryModel):
    """A die with room for so many tokens in its cache, whatever the rest takes."""

    tokens: int = 0

    @property
    def kv_tokens(self) -> int:
        return self.tokens


def batcher_of(blocks: int = 1000, *, drafts: int = 0, noise: bool = False, **changes: Any) -> Batcher:
    rows = 1 + drafts
    values: dict[str, Any] = {
        "tensor_parallel": 2,
        "max_num_seqs": 16,
        "max_model_len": 1600,
        "block_size": BLOCK,
        "graph_mode": GraphMode.FULL_DECODE_ONLY,
        "capture_sizes": (rows, 4 * rows, 8 * rows, 16 * rows),
        "speculation": Speculation(method="mtp", draft_tokens=drafts) if drafts else None,
    }
    config = ServingConfig.model_validate({**values, **changes})
    memory = KnownMemory(SYSTEM, config, tokens=blocks * config.block_size)
    return Batcher(CostModel(SYSTEM, config), memory, Noise("scheduler", on=noise))


def planned(batcher: Batcher) -> Step:
    step = batcher.plan()
    assert step is not None
    return step


def stepped(batcher: Batcher, steps: int = 1) -> list[Output]:
    return [output for _ in range(steps) for output in batcher.finish(planned(batcher))]


def drained(batcher: Batcher, most_steps: int = 20_000) -> dict[Sequence, int]:
    """Run until nothing is left; the tokens of each sequence."""
    tokens: dict[Sequence, int] = {}
    for _ in range(most_steps):
        step = batcher.plan()
        if step is None:
            return tokens
        for output in batcher.finish(step):
            tokens[output.sequence] = tokens.get(output.sequence, 0) + output.tokens
    raise AssertionError("the batcher does not come to an end")
