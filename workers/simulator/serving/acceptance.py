"""Which drafts of a request are taken: it depends on the request's data alone.

The same prompts give the same acceptance in every launch, as with greedy decoding on a real model. How far the
drafts of a cycle hold is one draw, so that a launch with fewer drafts takes the first ones of the same run.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from itertools import accumulate

from workers.simulator.model.cost_model import CostModel

AHEAD = 64  # cycles that are drawn at once


def taken_chances(model: CostModel) -> tuple[float, ...]:
    """Chances that at least k, k-1, .. 1 of the k drafts of a cycle are taken; empty without drafts."""
    drafts = model.config.draft_tokens
    chances = accumulate((model.acceptance(position) for position in range(drafts)), lambda a, b: a * b)
    return tuple(chances)[::-1]


class Acceptance:
    """The cycles of one request, in order. A cycle yields one token and its drafts as far as they are taken."""

    __slots__ = ("_at", "_dice", "_seed", "_totals")

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._dice: random.Random | None = None
        self._totals = [0]  # tokens after so many cycles
        self._at = 0  # cycles behind us

    def accepted(self, chances: tuple[float, ...]) -> int:
        """One cycle: how many of its drafts are taken."""
        self._draw(self._at + 1, chances)
        self._at += 1
        return self._totals[self._at] - self._totals[self._at - 1] - 1

    def cycles(self, tokens: int, chances: tuple[float, ...]) -> int:
        """How many of the next cycles it takes to yield so many tokens."""
        if not chances:
            return tokens
        goal = self._totals[self._at] + tokens
        while self._totals[-1] < goal:
            self._draw(len(self._totals), chances)
        return bisect_left(self._totals, goal, self._at) - self._at

    def path(self, cycles: int) -> list[int]:
        """Tokens that the next cycles have yielded before each of them begins. They must have been drawn."""
        start = self._totals[self._at]
        return [total - start for total in self._totals[self._at : self._at + cycles]]

    def advance(self, cycles: int) -> tuple[int, int]:
        """Leave so many drawn cycles behind: the tokens of all of them, and of the last."""
        totals, start = self._totals, self._totals[self._at]
        self._at += cycles
        return totals[self._at] - start, totals[self._at] - totals[self._at - 1]

    def _draw(self, cycles: int, chances: tuple[float, ...]) -> None:
        """Draw at least so many cycles, counted from the first."""
        missing = cycles + 1 - len(self._totals)
        if missing <= 0:
            return
        if self._dice is None:
            self._dice = random.Random(self._seed)  # noqa: S311 - reproducible by design, nothing here is a secret
        draw, most = self._dice.random, 1 + len(chances)
        yields = [most - bisect_right(chances, draw()) for _ in range(max(missing, AHEAD))]
        self._totals += accumulate(yields, initial=self._totals.pop())
