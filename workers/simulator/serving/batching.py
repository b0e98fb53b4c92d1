"""Continuous batching without a clock: which sequences go into the next step and what comes out of it.

A server with data parallelism has several ranks that run in lockstep: each schedules its own sequences, and a step
lasts as long as its slowest rank. A new sequence goes to the rank with the fewest, where one that waits counts as
four that run (vLLM's own balancing; neither engine looks at what a rank has cached); ranks that are equal take
turns (SGLang's round robin).

On a prefill server a sequence ends with its first token, and its KV stays until `release`. On a decode server
sequences come with their prompt and first token computed elsewhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import chain

from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.settings import Role
from workers.simulator.model.step import StepShape
from workers.simulator.serving.acceptance import taken_chances
from workers.simulator.serving.noise import Noise
from workers.simulator.serving.rank import Rank, Work
from workers.simulator.serving.sequence import Sequence
from workers.simulator.start.start_checks import check_load

__all__ = ["Batcher", "Output", "Sequence", "Step"]

WAITING_WEIGHT = 4  # vLLM's balancing of ranks


@dataclass(frozen=True, slots=True)
class Step:
    """One planned step of all ranks, of which `shapes` has one each; `duration_ms` with its noise."""

    decoding: tuple[Sequence, ...]
    prompts: tuple[tuple[Sequence, int], ...]
    shapes: tuple[StepShape, ...]
    duration_ms: float

    @property
    def prompt_tokens(self) -> int:
        return sum(chunk for _, chunk in self.prompts)


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one sequence; `drafted` and `accepted` count its draft tokens in the step."""

    sequence: Sequence
    tokens: int
    drafted: int = 0
    accepted: int = 0


class Batcher:
    """The state of the engine's scheduler."""

    def __init__(self, cost: CostModel, memory: MemoryModel, noise: Noise) -> None:
        self.cost = cost
        self.memory = memory
        self.noise = noise
        self.chances = taken_chances(cost)
        self.ranks = tuple(Rank(cost.config, memory.kv_tokens) for _ in range(cost.config.data_parallel))
        self._next_rank = 0

    @property
    def running(self) -> list[Sequence]:
        return self.ranks[0].running if len(self.ranks) == 1 else [s for rank in self.ranks for s in rank.running]

    @property
    def waiting(self) -> deque[Sequence]:
        """In order of arrival on each rank."""
        return self.ranks[0].waiting if len(self.ranks) == 1 else deque(chain(*(r.waiting for r in self.ranks)))

    @property
    def preemptions(self) -> int:
        return sum(rank.preemptions for rank in self.ranks)

    @property
    def prefix_queries(self) -> int:
        """Prompt tokens that were looked up in the prefix cache, once a request."""
        return sum(rank.prefix_queries for rank in self.ranks)

    @property
    def prefix_hits(self) -> int:
        """Those of `prefix_queries` that were found."""
        return sum(rank.prefix_hits for rank in self.ranks)

    @property
    def prefix_host_hits(self) -> int:
        """Those of `prefix_hits` that came back from host memory."""
        return sum(rank.prefix_host_hits for rank in self.ranks)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. One that was transferred and ends with its first token has nothing left to do: it is
        finished at once. Raises ValueError when the KV cache can never hold it; front ends refuse it before.
        """
        sequence.prompt_only = self.cost.config.role is Role.PREFILL
        rank = self._choose()
        if not self.ranks[rank].fits(sequence):
            raise ValueError(f"{sequence.prompt_tokens} + {sequence.max_tokens} tokens exceed the KV cache")
        if sequence.transferred and sequence.max_tokens <= 1:
            sequence.computed, sequence.generated = sequence.prompt_tokens, 1
            return
        sequence.rank = rank
        self.ranks[rank].waiting.append(sequence)
        self._next_rank = rank + 1

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence whose client has gone; nothing happens when it is unknown."""
        self.ranks[sequence.rank].remove(sequence)

    def release(self, sequence: Sequence) -> None:
        """A prefill server's KV of this sequence was fetched; nothing happens when it is unknown."""
        self.remove(sequence)

    def reset_prefix_cache(self) -> bool:
        """Forget all prefixes; refused while a sequence holds blocks."""
        if any(rank.cache.held for rank in self.ranks):
            return False
        for rank in self.ranks:
            rank.cache.reset()
        return True

    def plan(self) -> Step | None:
        """The next step; None when there is nothing to do. Raises DeviceOutOfMemory."""
        works = self.schedule()
        return None if works is None else self.priced(works)

    def finish(self, step: Step) -> list[Output]:
        """Book the step's result. Sequences removed meanwhile are left out; finished ones leave the batch."""
        drafts = self.cost.config.draft_tokens
        outputs: list[Output] = []
        for sequence in step.decoding:
            if sequence.table is not None:
                accepted = sequence.acceptance.accepted(self.chances) if drafts else 0
                tokens = min(1 + accepted, sequence.max_tokens - sequence.generated)
                sequence.generated += tokens
                sequence.computed += tokens
                outputs.append(Output(sequence, tokens, drafts, accepted))
        for sequence, tokens in step.prompts:
            if sequence.table is not None:
                before = sequence.generated
                self.ranks[sequence.rank].compute(sequence, tokens)
                if sequence.generated > before:
                    outputs.append(Output(sequence, 1))
        for rank in self.ranks:
            rank.settle()
        return outputs

    def kv_usage(self) -> float:
        """Share of the KV cache that sequences hold, as the mean of all ranks."""
        return sum(rank.cache.held / rank.cache.capacity for rank in self.ranks) / len(self.ranks)

    def _choose(self) -> int:
        """The rank for a new sequence."""
        count = len(self.ranks)
        turns = ((self._next_rank + turn) % count for turn in range(count))
        return min(turns, key=lambda i: WAITING_WEIGHT * len(self.ranks[i].waiting) + len(self.ranks[i].running))

    # --- the two halves of a plan, for whoever takes many steps at once -----------------------

    def schedule(self) -> list[Work] | None:
        """Each rank's part of the next step; None when all are idle. Raises DeviceOutOfMemory."""
        works = [rank.plan() for rank in self.ranks]
        if not any(works):
            return None
        if any(work.prompts for work in works):
            check_load(self.memory, max(len(rank.running) for rank in self.ranks))
        return works

    def priced(self, works: list[Work]) -> Step:
        """The step of these parts. Idle ranks take part in it and hold nobody up."""
        shapes = tuple(work.shape() for work in works)
        mean = max(self.cost.step_ms(shape) for shape in shapes)
        decoding = tuple(sequence for work in works for sequence in work.decoding)
        prompts = tuple(part for work in works for part in work.prompts)
        return Step(decoding, prompts, shapes, self.noise.step_ms(self.cost, mean))
