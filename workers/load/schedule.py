"""When the requests of an open loop become due. Absolute: what comes late never moves what comes after it."""

from __future__ import annotations

import hashlib
import math
import struct

from autotune.domain.workload import Arrivals, LoadLevel

_STEPS = 2**53  # the fineness of a double between 0 and 1


def due_times_s(level: LoadLevel, study_seed: int) -> list[float] | None:
    """Seconds from the start of the level, one for each request, the first 0; None for a closed loop.

    The same study seed gives every launch the same times: by chance alone, 200 Poisson arrivals take 7 % longer
    or shorter than their mean, which would pass for the server's doing.
    """
    if level.rate_per_s is None:
        return None
    if level.arrivals is Arrivals.CONSTANT:
        return [index / level.rate_per_s for index in range(level.requests)]
    # An extendable-output hash instead of `random`, whose sequences may differ between Python versions.
    draws = level.requests - 1
    key = f"{study_seed}/arrivals/{level.name}"
    numbers = struct.unpack(f"<{draws}Q", hashlib.shake_256(key.encode()).digest(8 * draws))
    due = [0.0]
    for number in numbers:
        due.append(due[-1] - math.log((number % _STEPS + 1) / _STEPS) / level.rate_per_s)
    return due
