"""How long one engine step takes: the sum of its causes, over a system and an effective configuration.

A captured decode step is weight traffic, small kernels, sizing of dynamic shapes, collectives, attention over the
context, dispatch and copies, allocators and other host costs. An eager step is bound by the host that launches
it. A speculative cycle verifies 1 + k rows a sequence and drafts k more. All times are in ms.

Sources of the coefficients: "report A" is the published ladder of Qwen3.5-35B-A3B on one 910C card (its rows are
named); "assumed" is a plausible size that no published figure fixes. Magnitudes of the chip, the stack and the
network stand in the system file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from workers.simulator.model.collectives import collectives_ms
from workers.simulator.model.experts import experts_ms, router_ms
from workers.simulator.model.host import device_allocator_ms, dispatch_ms, host_ms, launches_ms
from workers.simulator.model.kernels import attention_ms, dynamic_shapes_ms, graph_ms, nodes_ms, rows_ms
from workers.simulator.model.prompts import prompt_ms
from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.speculation import drafts_ms, profile
from workers.simulator.model.step import StepShape
from workers.simulator.model.system import System
from workers.simulator.model.weights import floor_ms, weight_bytes, weights_ms

# report A, row operator cache: p99 9.1 -> 8.9 ms at c1. A miss re-plans an operator within a step; cost and share are
# chosen so that 512 tokens lose 0.2 ms each at the 99th percentile of requests, and 0.06 ms on the average.
CACHE_MISS_MS = 27.0
CACHE_MISS_SHARE = 0.0024  # of steps, with the default limit of 10000 entries

MOST_KNOWN = 4096  # sums that are kept


@dataclass(frozen=True, slots=True)
class CostModel:
    """Step times of one system under one configuration; drafts meet the acceptance of `data_set`."""

    system: System
    config: ServingConfig
    data_set: str = "random"
    _known: dict[tuple[int, ...], float] = field(default_factory=dict, compare=False, repr=False)

    def step_ms(self, shape: StepShape) -> float:
        """Mean time of a step of this shape; with drafts a decode step is a whole cycle."""
        if shape.prompt_tokens:
            return self._mixed_ms(shape)
        if shape.decoding:
            return self._decode_ms(shape.decoding, shape.context_tokens)
        return 0.0

    def decode_step_ms(self, sequences: int, context_tokens: int = 0) -> float:
        """Mean time of a step in which nothing but `sequences` requests decode."""
        return self._decode_ms(sequences, context_tokens)

    def cache_miss_ms(self) -> float:
        """Mean cost a step of operators that are planned again; already part of every step time."""
        return self.cache_miss_share * CACHE_MISS_MS

    @property
    def cache_miss_share(self) -> float:
        """Share of steps that take CACHE_MISS_MS longer."""
        limit = self.config.aclnn_cache_limit or 10_000
        return CACHE_MISS_SHARE * min(10.0, 10_000 / limit) if limit < 100_000 else 0.0

    def active_weight_bytes(self, tokens: int) -> float:
        """Bytes that one rank must read in a step of so many tokens."""
        return sum(weight_bytes(self.system, self.config, tokens))

    def floor_ms(self, tokens: int) -> float:
        """What physics allows: active weight bytes over the chip's bandwidth."""
        return floor_ms(self.system, self.config, tokens)

    def causes_ms(self, sequences: int, context_tokens: int = 0) -> dict[str, float]:
        """The parts of a captured decode step by their cause, drafts included; their sum is the step."""
        tokens = sequences * (1 + self.config.draft_tokens)
        size = self.config.captured(tokens) or tokens
        parts = self._device_parts(sequences, tokens, size, context_tokens)
        parts["host"] = host_ms(self.config, sequences)
        parts["drafts"] = drafts_ms(self.system, self.config, sequences, eager=False)
        parts["operator_cache"] = self.cache_miss_ms()
        return parts

    # --- one step --------------------------------------------------------------------------

    def _decode_ms(self, sequences: int, context_tokens: int) -> float:
        tokens = sequences * (1 + self.config.draft_tokens)
        size = self.config.captured(tokens)
        time = self._captured_ms(sequences, tokens, size or tokens, context_tokens)
        if size is None:  # launching is asynchronous: the slower of host and device counts
            time = max(time, launches_ms(self.system, self.config, sequences))
        return time + drafts_ms(self.system, self.config, sequences, eager=size is None) + self.cache_miss_ms()

    def _mixed_ms(self, shape: StepShape) -> float:
        """A step that computes prompt tokens too. Under full decode graphs such a step runs eagerly."""
        time = self._prompts_ms(shape.prompt_tokens, shape.attended_tokens)
        if shape.decoding:
            tokens = shape.decoding * (1 + self.config.draft_tokens)
            time += self._captured_ms(shape.decoding, tokens, tokens, shape.context_tokens)
        time = max(time, launches_ms(self.system, self.config, shape.decoding))
        if shape.decoding:
            time += drafts_ms(self.system, self.config, shape.decoding, eager=False)
        return time + self.cache_miss_ms()

    def _captured_ms(self, sequences: int, tokens: int, size: int, context_tokens: int) -> float:
        """All causes; those that do not depend on the context are summed once for a size."""
        key = (sequences, tokens, size)
        if (rest := self._known.get(key)) is None:
            rest = math.fsum(self._device_parts(sequences, tokens, size, 0).values()) + host_ms(self.config, sequences)
            self._known[key] = rest
        return rest + attention_ms(self.system, self.config, context_tokens)

    def _prompts_ms(self, tokens: int, attended: int) -> float:
        key = (tokens, attended)
        if (time := self._known.get(key)) is None:
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            time = self._known[key] = prompt_ms(self.system, self.config, tokens, attended)
        return time

    def _device_parts(self, sequences: int, tokens: int, size: int, context_tokens: int) -> dict[str, float]:
        system, config = self.system, self.config
        return {
            "weights": weights_ms(system, config, tokens),
            "kernels": nodes_ms(system) + rows_ms(system, size),
            "dynamic_shapes": dynamic_shapes_ms(system, config),
            "router": router_ms(system, config),
            "experts": experts_ms(system, config, tokens),
            "collectives": collectives_ms(system, config, size, size),
            "attention": attention_ms(system, config, context_tokens),
            "dispatch": dispatch_ms(system),
            "device_allocator": device_allocator_ms(system, config, sequences),
            "graph": graph_ms(system, config, sequences),
        }

    # --- what a client sees ----------------------------------------------------------------

    def acceptance(self, position: int) -> float:
        """Chance that the draft at this position (from 0) is taken once all before it were."""
        known = profile(self.system, self.data_set)
        return known[min(position, len(known) - 1)]

    def tokens_per_step(self) -> float:
        """Mean tokens that one decode step yields a sequence."""
        total = taken = 1.0
        for position in range(self.config.draft_tokens):
            taken *= self.acceptance(position)
            total += taken
        return total

    def closed_loop_tpot_ms(self, concurrency: int, prompt_tokens: int, output_tokens: int) -> float:
        """TPOT in the steady state of a closed loop: each request meets one prompt of every other stream."""
        running = min(concurrency, self.config.max_num_seqs)
        steps = (output_tokens - 1) / self.tokens_per_step()
        context = running * (prompt_tokens + output_tokens // 2)
        stall = self._prompt_ms(prompt_tokens, running - 1)
        return (steps * self._decode_ms(running, context) + (running - 1) * stall) / (output_tokens - 1)

    def ttft_ms(self, prompt_tokens: int) -> float:
        """Time to the first token of a lone request."""
        return self._prompt_ms(prompt_tokens, 0)

    def _prompt_ms(self, prompt_tokens: int, sequences: int) -> float:
        """What a prompt adds to the others' time: its chunks, each in a step of its own or shared with them."""
        room = max(self.config.max_num_batched_tokens - sequences * (1 + self.config.draft_tokens), 1)
        time, done = 0.0, 0
        while done < prompt_tokens:
            chunk = min(room, prompt_tokens - done)
            attended = chunk * done + chunk * (chunk + 1) // 2
            step = self._mixed_ms(StepShape(sequences, 0, chunk, attended))
            time += step - (self._decode_ms(sequences, 0) if sequences else 0.0)
            done += chunk
        return time
