"""Randomness of one launch, reproducible from its seed.

Launches and hosts differ as a whole; within a launch steps spread, the level drifts over minutes, the first steps
are slow, a few steps are much too long, and a step in which operators are planned again takes longer. Everything
but the cold start is balanced: the mean over launches stays at the cost model's. All sizes are assumed: the
published reports print no repeated runs.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from workers.simulator.model.cost_model import CACHE_MISS_MS, CostModel
from workers.simulator.variables import HOST, NOISE
from workers.simulator.variables import SEED as SEED_ENV

LAUNCH_SIGMA = 0.01
SLOW_LAUNCH_SHARE = 0.02
SLOW_LAUNCH_EXTRA = 0.03
HOST_MOST = 0.015
STEP_SIGMA = 0.003
CUT = 3.0  # in sigmas
DRIFT = ((0.0035, 420.0), (0.0015, 97.0))  # amplitude and period in s of the engine's clock
OUTLIER_SHARE = 1 / 5000
OUTLIER_TIMES = 5.0  # of a step's mean
OUTLIER_MOST_MS = 100.0  # a long prompt step is not made five times as long
COLD = ((0.25, 20.0), (0.02, 400.0))  # excess of the first step, and how many steps it takes to fall to 1/e
WARM_AFTER = 4000  # steps; what is left of the excess is below 1e-6
STRAIGHT_S = 4.0  # within so long the drift bends by less than 2e-5 of a step
BLOCK = 1024  # draws at once


def launch_seed(env: Mapping[str, str], port: int) -> str:
    """The value of AUTOTUNE_SIM_SEED; without it port and process id, so that each launch differs."""
    return env.get(SEED_ENV) or f"{port}-{os.getpid()}"


def launch_noise(env: Mapping[str, str], seed: str) -> Noise:
    """The noise of a launch with this seed under the simulation's settings."""
    return Noise(seed, env.get(HOST), on=env.get(NOISE, "").lower() != "off")


def request_seed(tokens: Sequence[int] | str) -> int:
    """A seed that depends on the prompt alone."""
    data = tokens if isinstance(tokens, str) else ",".join(map(str, tokens))
    return zlib.crc32(data.encode())


def host_factor(name: str | None) -> float:
    """How much slower than the average a host is; the same for the same name."""
    return 1.0 if name is None else 1.0 + HOST_MOST * (2 * zlib.crc32(name.encode()) / 0xFFFFFFFF - 1)


class Noise:
    """Draws for one launch. The n-th step of a launch has the same draw however the steps before it were asked for.

    `launch_factor` is launch and host together. With `on` false every step takes its mean.
    """

    def __init__(self, seed: str, host: str | None = None, *, on: bool = True) -> None:
        self._on = on
        self._dice = np.random.default_rng(list(seed.encode()) or [0])
        spread = LAUNCH_SIGMA * _cut(float(self._dice.standard_normal()))
        slow = SLOW_LAUNCH_EXTRA if self._dice.random() < SLOW_LAUNCH_SHARE else 0.0
        self._phases = tuple(2 * math.pi * float(self._dice.random()) for _ in DRIFT)
        balanced = (1 + spread + slow) / (1 + SLOW_LAUNCH_SHARE * SLOW_LAUNCH_EXTRA)
        self.launch_factor = balanced * host_factor(host) if on else 1.0
        self._spread: NDArray[np.float64] = np.empty(0)
        self._outlier: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)
        self._missing: NDArray[np.float64] = np.empty(0)
        self._first = 0  # number of the step to which the first kept draw belongs
        self._next = 0
        self._busy_s = 0.0

    def step_ms(self, model: CostModel, mean_ms: float, at_s: float | None = None) -> float:
        """One step's time around its mean."""
        if not self._on:
            return mean_ms
        if self._next - self._first >= len(self._spread):
            self._draw(1)
        i = self._next - self._first
        steady = mean_ms - model.cache_miss_ms() - OUTLIER_SHARE * _outlier_ms(mean_ms)
        time = steady * float(self._spread[i])
        if self._outlier[i]:
            time += _outlier_ms(mean_ms)
        if self._missing[i] < model.cache_miss_share:
            time += CACHE_MISS_MS
        now_s = self._busy_s if at_s is None else at_s
        level = self.launch_factor * (1 + sum(self._swing(number, now_s) for number in range(len(DRIFT))))
        if self._next < WARM_AFTER:
            level *= 1 + sum(excess * math.exp(-self._next / steps) for excess, steps in COLD)
        self._next += 1
        self._busy_s += time * level / 1e3
        return time * level

    def steps_ms(
        self, model: CostModel, means: NDArray[np.float64], start_s: float | None = None
    ) -> NDArray[np.float64]:
        """The times of consecutive steps, the first of which starts at `start_s` on the engine's clock.

        Without it the clock is the sum of all steps so far. The draws are those of `step_ms` called for each.
        """
        if not self._on or not len(means):
            return means.copy()
        count = len(means)
        if self._next - self._first + count > len(self._spread):
            self._draw(count)
        part = slice(self._next - self._first, self._next - self._first + count)
        extra = np.minimum((OUTLIER_TIMES - 1) * means, OUTLIER_MOST_MS)
        times = (means - model.cache_miss_ms() - OUTLIER_SHARE * extra) * self._spread[part]
        outlier = self._outlier[part]
        if outlier.any():
            times[outlier] += extra[outlier]
        if model.cache_miss_share:
            times[self._missing[part] < model.cache_miss_share] += CACHE_MISS_MS
        level = self._drift(means, self._busy_s if start_s is None else start_s)
        if self._next < WARM_AFTER:
            numbers = np.arange(self._next, self._next + count)
            level *= 1.0 + sum(excess * np.exp(-numbers / steps) for excess, steps in COLD)
        times *= level * self.launch_factor
        self._next += count
        self._busy_s += float(times.sum()) / 1e3
        return times

    def give_back(self, unused_ms: NDArray[np.float64]) -> None:
        """The last steps that were asked for did not take place: the next ones get their draws."""
        if self._on:
            self._next -= len(unused_ms)
            self._busy_s -= float(unused_ms.sum()) / 1e3

    def _drift(self, means: NDArray[np.float64], start_s: float) -> NDArray[np.float64]:
        """The level at the begin of each step: straight within a run that is short against the periods."""
        begins = np.cumsum(means)
        begins -= means
        begins *= self.launch_factor / 1e3
        length_s = float(begins[-1])
        if length_s > STRAIGHT_S:
            begins += start_s
            level: NDArray[np.float64] = np.ones(len(begins))
            for (amplitude, period), phase in zip(DRIFT, self._phases, strict=True):
                level += amplitude * np.sin(2 * math.pi * begins / period + phase)
            return level
        first, last = (
            1.0 + sum(self._swing(number, at_s) for number in range(len(DRIFT)))
            for at_s in (start_s, start_s + length_s)
        )
        if length_s > 0:
            begins *= (last - first) / length_s
        begins += first
        return begins

    def _swing(self, number: int, at_s: float) -> float:
        amplitude, period = DRIFT[number]
        return amplitude * math.sin(2 * math.pi * at_s / period + self._phases[number])

    def _draw(self, count: int) -> None:
        """More draws, in blocks of one size: which draw a step gets does not depend on who asks for how many.

        A block of draws that were taken is kept, so that the last ones can be given back.
        """
        done = max(self._next - self._first - BLOCK, 0) // BLOCK * BLOCK
        spread, outlier, missing = [self._spread[done:]], [self._outlier[done:]], [self._missing[done:]]
        self._first += done
        kept = len(spread[0])
        while self._next - self._first + count > kept:
            normal = np.clip(self._dice.standard_normal(BLOCK), -CUT, CUT)
            spread.append(1 + STEP_SIGMA * normal)
            outlier.append(self._dice.random(BLOCK) < OUTLIER_SHARE)
            missing.append(self._dice.random(BLOCK))
            kept += BLOCK
        self._spread, self._outlier = np.concatenate(spread), np.concatenate(outlier)
        self._missing = np.concatenate(missing)


def _outlier_ms(mean_ms: float) -> float:
    return min((OUTLIER_TIMES - 1) * mean_ms, OUTLIER_MOST_MS)


def _cut(drawn: float) -> float:
    return max(-CUT, min(CUT, drawn))
