"""Randomness of one launch, reproducible from its seed.

Launches differ by about 1 %, steps within a launch by 0.3 %; a step in which operators are planned again takes
longer. Which drafts are accepted depends on the request's data alone, so that the same prompts give the same
acceptance in every launch, as with greedy decoding on a real model.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Mapping, Sequence

from workers.simulator.model.cost_model import CACHE_MISS_MS, CostModel

LAUNCH_SIGMA = 0.01
STEP_SIGMA = 0.003
SEED_ENV = "AUTOTUNE_SIM_SEED"


def launch_seed(env: Mapping[str, str], port: int) -> str:
    """The value of AUTOTUNE_SIM_SEED; without it port and process id, so that each launch differs."""
    return env.get(SEED_ENV) or f"{port}-{os.getpid()}"


def request_seed(tokens: Sequence[int] | str) -> int:
    """A seed that depends on the prompt alone."""
    data = tokens if isinstance(tokens, str) else ",".join(map(str, tokens))
    return zlib.crc32(data.encode())


class Noise:
    """Draws for one launch."""

    def __init__(self, seed: str) -> None:
        self._random = _dice(seed)
        drawn = self._random.gauss(0.0, LAUNCH_SIGMA)
        self.launch_factor = 1.0 + max(-3 * LAUNCH_SIGMA, min(3 * LAUNCH_SIGMA, drawn))

    def step_ms(self, model: CostModel, mean_ms: float) -> float:
        """One step's time around its mean."""
        drawn = max(-3.0, min(3.0, self._random.gauss(0.0, 1.0)))
        steady = (mean_ms - model.cache_miss_ms()) * (1 + STEP_SIGMA * drawn)
        missed = CACHE_MISS_MS if self._random.random() < model.cache_miss_share else 0.0
        return (steady + missed) * self.launch_factor


class Acceptance:
    """Which drafts of one request are taken."""

    def __init__(self, seed: int) -> None:
        self._random = _dice(seed)

    def accepted(self, model: CostModel, drafts: int) -> int:
        """How many of the next drafts are taken: the first refused one ends the run."""
        draws = [self._random.random() for _ in range(drafts)]
        return next((i for i, draw in enumerate(draws) if draw >= model.acceptance(i)), drafts)


def _dice(seed: str | int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - reproducible by design, nothing here is a secret
