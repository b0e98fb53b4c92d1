"""Times per token of requests that share the steps of a server whose pace wanders, for tests and benches."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

# What was assumed of a server: the noise of a step is correlated over some 500 steps, its standard deviation 3 %.
PHI = 0.998
SPREAD = 0.03


def paces(
    rng: np.random.Generator, waves: int, streams: int, steps: int = 512, own: float = 0.0, spread: float = SPREAD
) -> NDArray[np.float64]:
    """Logs of the times per token, a row for each wave of `streams` requests that run together for so many steps.

    The long-run mean is 0. `own`: a standard deviation that each request has for itself.
    """
    start = rng.standard_normal() * spread
    shocks = rng.standard_normal(waves * steps) * spread * math.sqrt(1 - PHI**2)
    noise, _ = lfilter([1.0], [1.0, -PHI], shocks, zi=[PHI * start])
    means = noise.reshape(waves, steps).mean(axis=1)
    found: NDArray[np.float64] = means[:, None] + own * rng.standard_normal((waves, streams))
    return found
