"""Many decode steps at once: what single steps of the batcher give, without taking them one by one.

While no prompt is computed, nobody can start and no block is missing, each step decodes the same sequences. Such a
run lasts until one of them ends. Drafts that are taken and draws of the steps' times are those of single steps.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.step import StepShape
from workers.simulator.serving.batching import Batcher, Output, Sequence, Step
from workers.simulator.serving.rank import Rank, Work

Floats = npt.NDArray[np.float64]

MOST_STEPS = 4096
TOLERANCE = 1e-9
FINEST_TOKENS = 64  # a curved cost is taken as straight between so many context tokens


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive steps that decode the same sequences, `ends_ms` from the start of the first.

    `single` is there for a run of one step, the only kind that can compute prompts.
    """

    decoding: tuple[Sequence, ...]
    ends_ms: Floats
    single: Step | None = None

    @property
    def steps(self) -> int:
        return len(self.ends_ms)


class Runs:
    """Takes a batcher's steps in runs."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._drafts = batcher.cost.config.draft_tokens
        self._times: dict[int, _DecodeTimes] = {}

    def plan(self, until_ms: float = math.inf, most_steps: int = MOST_STEPS) -> Run | None:
        """The next steps: up to the end of a sequence, or the first step that ends at `until_ms` or later.

        None when there is nothing to do. Raises DeviceOutOfMemory.
        """
        works = self._batcher.schedule()
        if works is None:
            return None
        steps = self._steps(works, most_steps)
        if steps > 1 and until_ms < math.inf:  # do not draw what is out of reach
            steps = min(steps, max(int(until_ms / self._least_ms(works) * 1.1), 0) + 2)
        if steps <= 1:
            step = self._batcher.priced(works)
            return Run(step.decoding, np.array([step.duration_ms]), step)
        times = self._batcher.noise.steps_ms(self._batcher.cost, self._means(works, steps))
        ends = np.cumsum(times)
        if until_ms < ends[-1]:
            steps = int(np.searchsorted(ends, until_ms)) + 1
            self._batcher.noise.give_back(times[steps:])
            ends = ends[:steps]
        return Run(tuple(sequence for work in works for sequence in work.decoding), ends)

    def finish(self, run: Run) -> list[Output]:
        """Book a run; the output of a sequence sums up all its steps. Otherwise as `Batcher.finish`."""
        if run.single is not None:
            return self._batcher.finish(run.single)
        outputs: list[Output] = []
        for sequence in run.decoding:
            if sequence.table is None:
                continue
            total, last = sequence.acceptance.advance(run.steps) if self._drafts else (run.steps, 1)
            sequence.computed += total - last
            grown = self._batcher.ranks[sequence.rank].grow(sequence, 1)  # as single steps would have, at the last
            assert grown, "the plan has counted the blocks"
            tokens = min(total, sequence.max_tokens - sequence.generated)
            sequence.generated += tokens
            sequence.computed += last - (total - tokens)
            outputs.append(Output(sequence, tokens, self._drafts * run.steps, total - run.steps))
        for rank in self._batcher.ranks:
            rank.settle()
        return outputs

    # --- how many, and how long ---------------------------------------------------------------

    def _steps(self, works: list[Work], most_steps: int) -> int:
        if not all(work.settled and not work.prompts for work in works):
            return 1
        chances = self._batcher.chances
        steps = min(most_steps, MOST_STEPS)
        for work in works:
            for sequence in work.decoding:
                steps = min(steps, sequence.acceptance.cycles(sequence.max_tokens - sequence.generated, chances))
        for rank, work in zip(self._batcher.ranks, works, strict=True):
            if _blocks_through(rank, work, steps) > rank.cache.free:
                enough = range(2, steps + 1)
                steps = 1 + bisect_right(enough, rank.cache.free, key=partial(_blocks_through, rank, work))
        return steps

    def _means(self, works: list[Work], steps: int) -> Floats:
        slowest: Floats | None = None
        for work in works:
            if not work.decoding:
                continue
            context = sum(sequence.computed for sequence in work.decoding) + self._growth(work, steps)
            means = self._decode_times(len(work.decoding), int(context[-1])).at(context)
            slowest = means if slowest is None else np.maximum(slowest, means)
        assert slowest is not None, "a rank has work"
        return slowest

    def _least_ms(self, works: list[Work]) -> float:
        """No step of these sequences has a lower mean: that of an empty context."""
        return max(self._decode_times(len(work.decoding), 0).least for work in works if work.decoding)

    def _growth(self, work: Work, steps: int) -> Floats:
        """Tokens that the sequences together have gained before each step."""
        if not self._drafts:
            return np.arange(steps, dtype=np.float64) * len(work.decoding)
        paths = [sequence.acceptance.path(steps) for sequence in work.decoding]
        found = paths[0].astype(np.float64)
        for path in paths[1:]:
            found += path
        found -= found[0]
        return found

    def _decode_times(self, decoding: int, context: int) -> _DecodeTimes:
        times = self._times.get(decoding)
        if times is None or times.top < context:
            cost = self._batcher.cost
            top = max(2 * context, decoding * cost.config.max_model_len)
            times = self._times[decoding] = _DecodeTimes(cost, decoding, top)
        return times


class _DecodeTimes:
    """Mean step times of so many sequences by their context, up to `top` tokens: straight pieces of the cost model."""

    def __init__(self, cost: CostModel, decoding: int, top: int) -> None:
        self.top = top
        self._cost = cost
        self._decoding = decoding
        first, last = self._mean(0), self._mean(top)
        knots = [(0, first), *self._between(0, first, top, last), (top, last)]
        self._contexts = np.array([context for context, _ in knots], dtype=np.float64)
        self._values = np.array([value for _, value in knots])
        self.least = float(self._values.min())

    def at(self, contexts: Floats) -> Floats:
        found: Floats = np.interp(contexts, self._contexts, self._values)
        return found

    def _mean(self, context: int) -> float:
        return self._cost.step_ms(StepShape(decoding=self._decoding, context_tokens=context))

    def _between(self, low: int, at_low: float, high: int, at_high: float) -> list[tuple[int, float]]:
        """Knots inside a piece, none where it is straight."""
        if high - low <= FINEST_TOKENS:
            return []
        middle = (low + high) // 2
        at_middle = self._mean(middle)
        straight = at_low + (at_high - at_low) * (middle - low) / (high - low)
        if abs(at_middle - straight) <= TOLERANCE * at_middle:
            return []
        left = self._between(low, at_low, middle, at_middle)
        return [*left, (middle, at_middle), *self._between(middle, at_middle, high, at_high)]


def _blocks_through(rank: Rank, work: Work, steps: int) -> int:
    """Blocks beyond those held that the sequences need at most for so many steps."""
    more = 0
    for sequence in work.decoding:
        assert sequence.table is not None, "it runs"
        more += max(rank.blocks_after(sequence, steps) - sequence.table.blocks, 0)
    return more
