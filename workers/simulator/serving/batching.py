"""Continuous batching without a clock: which sequences go into the next step and what comes out of it.

First come, first served. Every running sequence decodes in each step while the token budget lasts; what is left
of the budget computes prompts in chunks. A prompt's last chunk yields its first token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.serving.noise import Acceptance, Noise
from workers.simulator.start.start_checks import check_load


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine. `arrived_s` is on the engine's clock."""

    prompt_tokens: int
    max_tokens: int
    seed: int
    arrived_s: float = 0.0
    computed: int = 0
    generated: int = 0
    acceptance: Acceptance = field(init=False)

    def __post_init__(self) -> None:
        self.acceptance = Acceptance(self.seed)

    @property
    def decodes(self) -> bool:
        return self.computed >= self.prompt_tokens

    @property
    def finished(self) -> bool:
        return self.generated >= self.max_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """One planned step; `duration_ms` with its noise."""

    decoding: tuple[Sequence, ...]
    prompts: tuple[tuple[Sequence, int], ...]
    duration_ms: float

    @property
    def prompt_tokens(self) -> int:
        return sum(chunk for _, chunk in self.prompts)


@dataclass(frozen=True, slots=True)
class Output:
    """New tokens of one sequence; `drafted` and `accepted` count its draft tokens in this step."""

    sequence: Sequence
    tokens: int
    drafted: int = 0
    accepted: int = 0


class Batcher:
    """The state of the engine's scheduler."""

    def __init__(self, cost: CostModel, memory: MemoryModel, noise: Noise) -> None:
        self._cost = cost
        self._memory = memory
        self._noise = noise
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence whose client has gone; nothing happens when it is unknown."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def plan(self) -> Step | None:
        """The next step; None when there is nothing to do. Raises DeviceOutOfMemory."""
        self._admit()
        if not self.running:
            return None
        config = self._cost.config
        rows = 1 + config.draft_tokens
        budget = config.max_num_batched_tokens
        decoding: list[Sequence] = []
        for sequence in self.running:
            if sequence.decodes and budget >= rows:
                decoding.append(sequence)
                budget -= rows
        prompts: list[tuple[Sequence, int]] = []
        for sequence in self.running:
            if not sequence.decodes and budget > 0:
                chunk = min(sequence.prompt_tokens - sequence.computed, budget)
                prompts.append((sequence, chunk))
                budget -= chunk
        if prompts:
            check_load(self._memory, len(self.running))
            mean = self._cost.mixed_step_ms(sum(chunk for _, chunk in prompts), len(decoding))
        else:
            mean = self._cost.decode_step_ms(len(decoding))
        return Step(tuple(decoding), tuple(prompts), self._noise.step_ms(self._cost, mean))

    def finish(self, step: Step) -> list[Output]:
        """Book the step's result. Sequences removed meanwhile are left out; finished ones leave the batch."""
        drafts = self._cost.config.draft_tokens
        outputs: list[Output] = []
        present = set(map(id, self.running))
        for sequence in step.decoding:
            if id(sequence) in present:
                accepted = sequence.acceptance.accepted(self._cost, drafts) if drafts else 0
                tokens = min(1 + accepted, sequence.max_tokens - sequence.generated)
                sequence.generated += tokens
                outputs.append(Output(sequence, tokens, drafts, accepted))
        for sequence, chunk in step.prompts:
            if id(sequence) in present:
                sequence.computed += chunk
                if sequence.decodes:
                    sequence.generated += 1
                    outputs.append(Output(sequence, 1))
        self.running = [sequence for sequence in self.running if not sequence.finished]
        return outputs

    def kv_usage(self) -> float:
        """Share of the KV cache that running sequences hold."""
        held = sum(sequence.computed + sequence.generated for sequence in self.running)
        return held / max(self._memory.kv_tokens, 1)

    def _admit(self) -> None:
        reserved = sum(s.prompt_tokens + s.max_tokens for s in self.running)
        while self.waiting and len(self.running) < self._cost.config.max_num_seqs:
            first = self.waiting[0]
            reserved += first.prompt_tokens + first.max_tokens
            if self.running and reserved > self._memory.kv_tokens:
                return
            self.running.append(self.waiting.popleft())
