"""When the requests of an open loop become due. Absolute: what comes late never moves what comes after it."""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.domain.workload import Arrivals, LoadLevel
from workers.load.trace import read_trace

_STEPS = 2**53  # the fineness of a double between 0 and 1


def due_times_s(level: LoadLevel, study_seed: int) -> list[float] | None:
    """Seconds from the start of the level, one for each request, never decreasing; None for a closed loop.

    As many as the level has requests or, with a duration, as become due within it. The first of an open loop is due
    at 0, those of a trace as it says. The same study seed gives every launch the same times: by chance alone, 200
    Poisson arrivals take 7 % longer or shorter than their mean, which would pass for the server's doing.

    Raises BadTrace for a trace file that can't be used.
    """
    if level.trace_file is not None:
        entries = read_trace(Path(level.trace_file))
        return _within(level, [entry.at_s for entry in entries[: level.requests]])
    if level.rate_per_s is None:
        return None
    times = (_at(level, operational / level.rate_per_s) for operational in _unit_arrivals(level, study_seed))
    if level.duration_s is None:
        return list(times)
    ended = level.duration_s
    return list(itertools.takewhile(lambda due_s: due_s < ended, times))


def staggered_s(level: LoadLevel, took_s: Sequence[float]) -> list[float]:
    """When each stream of a closed loop sends its first request: at once, or spread over the mean of `took_s`."""
    streams = min(level.concurrency, level.requests)
    if not level.stagger or not took_s:
        return [0.0] * streams
    mean_s = math.fsum(took_s) / len(took_s)
    return [stream * mean_s / streams for stream in range(streams)]


def _within(level: LoadLevel, due_s: list[float]) -> list[float]:
    return due_s if level.duration_s is None else [due for due in due_s if due < level.duration_s]


def _at(level: LoadLevel, even_s: float) -> float:
    """The time in a ramp of what would be due at `even_s` at its first rate; the same without a ramp.

    While the rate goes from r to s in T seconds, r t + (s - r) t^2 / 2 T requests become due by t. T is the level's
    duration, or the time that its requests take at the mean of both rates.
    """
    start, end = level.rate_per_s, level.rate_to_per_s
    if start is None or end is None or start == end:
        return even_s
    ramp_s = level.duration_s if level.duration_s is not None else level.requests / ((start + end) / 2)
    count = even_s * start
    most = ramp_s * (start + end) / 2
    if count > most:  # random arrivals may come later than their mean: the last rate goes on
        return ramp_s + (count - most) / end
    slope = (end - start) / ramp_s
    return 2 * count / (start + math.sqrt(max(start * start + 2 * slope * count, 0.0)))


def _unit_arrivals(level: LoadLevel, study_seed: int) -> Iterator[float]:
    """Arrivals at one a second."""
    if level.arrivals is Arrivals.CONSTANT:
        yield from map(float, range(level.requests))
        return
    key = f"{study_seed}/arrivals/{level.name}"
    if level.arrivals is Arrivals.GAMMA and level.burstiness is not None:
        gaps = _gamma_gaps(level.burstiness, _uniform(f"{key}/gamma"))
    else:
        gaps = (-math.log(number) for number in _one_by_one(key, level.requests - 1))
    yield from itertools.accumulate(itertools.islice(gaps, level.requests - 1), initial=0.0)


def _one_by_one(key: str, draws: int) -> Iterator[float]:
    """So many numbers above 0 and up to 1."""
    # An extendable-output hash instead of `random`, whose sequences may differ between Python versions.
    numbers = struct.unpack(f"<{draws}Q", hashlib.shake_256(key.encode()).digest(8 * draws))
    return ((number % _STEPS + 1) / _STEPS for number in numbers)


def _uniform(key: str) -> Iterator[float]:
    """Numbers above 0 and up to 1 without end."""
    for block in itertools.count():
        yield from _one_by_one(f"{key}/{block}", 512)


def _gamma_gaps(shape: float, uniform: Iterator[float]) -> Iterator[float]:
    """Gamma variates of mean 1 (Marsaglia and Tsang 2000, with their boost for shapes below 1)."""
    boosted = shape if shape >= 1 else shape + 1
    d = boosted - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        # Box and Muller: the cosine half alone, so that each try takes the same number of draws.
        x = math.sqrt(-2 * math.log(next(uniform))) * math.cos(2 * math.pi * next(uniform))
        v = (1 + c * x) ** 3
        accept, power = next(uniform), next(uniform)
        if v <= 0 or math.log(accept) >= 0.5 * x * x + d - d * v + d * math.log(v):
            continue
        boost = 1.0 if shape >= 1 else power ** (1 / shape)
        yield d * v * boost / shape
