"""Which drafts of a request are taken: it depends on the request's data alone.

The same prompts give the same acceptance in every launch, as with greedy decoding on a real model. How far the
drafts of a cycle hold is one draw, so that a launch with fewer drafts takes the first ones of the same run.
"""

from __future__ import annotations

import random
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from workers.simulator.model.cost_model import CostModel

Counts = NDArray[np.int64]

AHEAD = 192  # cycles that are drawn at once: those of 512 tokens with four drafts
_BYTES = 8  # of a draw


def taken_chances(model: CostModel) -> tuple[float, ...]:
    """Chances that at least k, k-1, .. 1 of the k drafts of a cycle are taken; empty without drafts."""
    drafts = model.config.draft_tokens
    chances = accumulate((model.acceptance(position) for position in range(drafts)), lambda a, b: a * b)
    return tuple(chances)[::-1]


class Acceptance:
    """The cycles of one request, in order. A cycle yields one token and its drafts as far as they are taken."""

    __slots__ = ("_at", "_dice", "_end", "_goal", "_seed", "_totals")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._dice: random.Random | None = None
        self._totals: Counts = np.zeros(1, dtype=np.int64)  # tokens after so many cycles
        self._at = 0  # cycles behind us
        self._goal = self._end = 0  # tokens that were asked for last, and the cycle that yields them

    def accepted(self, chances: tuple[float, ...]) -> int:
        """One cycle: how many of its drafts are taken."""
        self._draw(self._at + 1, chances)
        self._at += 1
        return int(self._totals[self._at] - self._totals[self._at - 1]) - 1

    def cycles(self, tokens: int, chances: tuple[float, ...]) -> int:
        """How many of the next cycles it takes to yield so many tokens."""
        if not chances:
            return tokens
        goal = int(self._totals[self._at]) + tokens
        if goal != self._goal or self._end < self._at:
            while self._totals[-1] < goal:
                self._draw(len(self._totals), chances)
            self._goal, self._end = goal, int(self._totals.searchsorted(goal))
        return self._end - self._at

    def path(self, cycles: int) -> Counts:
        """Tokens of the request before each of the next cycles, a view. They must have been drawn."""
        totals: Counts = self._totals[self._at : self._at + cycles]
        return totals

    def advance(self, cycles: int) -> tuple[int, int]:
        """Leave so many drawn cycles behind: the tokens of all of them, and of the last."""
        totals, start = self._totals, self._totals[self._at]
        self._at += cycles
        return int(totals[self._at] - start), int(totals[self._at] - totals[self._at - 1])

    def _draw(self, cycles: int, chances: tuple[float, ...]) -> None:
        """Draw at least so many cycles, counted from the first."""
        missing = cycles + 1 - len(self._totals)
        if missing <= 0:
            return
        if self._dice is None:
            self._dice = random.Random(self._seed)  # noqa: S311 - reproducible by design, nothing here is a secret
        count = max(missing, AHEAD)
        draws = np.frombuffer(self._dice.randbytes(_BYTES * count), dtype="<u8") * 2.0**-64
        yields: Counts = 1 + len(chances) - np.array(chances).searchsorted(draws, side="right")
        yields[0] += self._totals[-1]
        self._totals = np.concatenate((self._totals, yields.cumsum()))
