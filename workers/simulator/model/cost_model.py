"""How long one engine step takes: pure arithmetic over a system and an effective configuration.

A captured decode step is the sum of its causes: weight traffic, kernels, host dispatch, synchronization,
workspace sizing of dynamic-shape kernels, collectives, the device allocator, and host-side costs that no stack
upgrade scales. An eager step is bound by the host that launches it. A speculative cycle verifies 1 + k rows a
sequence and drafts k more. All times are in ms.

Sources of the coefficients: "report A" is the published ladder of Qwen3.5-35B-A3B on one 910C card (its rows are
named); "assumed" is a plausible size that no published figure fixes. Magnitudes of the system itself stand in
the system file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workers.simulator.model.settings import Allocator, GraphMode, ServingConfig
from workers.simulator.model.step import StepShape
from workers.simulator.model.system import System

# report A, row host allocator: glibc's arena contention costs 0.1 / 0.3 / 0.6 ms at c1 / c4 / c8.
HOST_ALLOCATOR_MS = 0.10
HOST_ALLOCATOR_PER_SEQUENCE_MS = 0.07
# report A, row weight prefetch: -0.1 / -0.2 ms at c1 / c4, "TTFT better".
PREFETCH_SHARE = 0.04  # of weight traffic
PREFETCH_PREFILL = 0.985
# report A, row operator cache: p99 9.1 -> 8.9 ms. A miss re-plans an operator within a step; sizes assumed.
CACHE_MISS_MS = 16.0
CACHE_MISS_SHARE = 0.004  # of steps, with the default limit of 10000 entries
# report A, row batch memcpy: "small".
BATCH_MEMCPY_MS = 0.03
# report A kept OMP_NUM_THREADS=1 without a figure; the shape is assumed. Unset means one thread a core.
OMP_MS = {1: -0.10, 2: -0.12, 4: -0.06, 8: 0.02, 16: 0.15}
OMP_BOUND_MS = 0.10  # more than four threads on the few cores that binding leaves; assumed
# report A: plain binding helped, fine-grained CPU_AFFINITY_CONF=2 harmed; sizes assumed.
BINDING_MS = 0.08
BINDING_PER_SEQUENCE_MS = 0.01
AFFINITY_MS = {0: 0.0, 1: -0.04, 2: 0.90}
AFFINITY_WITH_BINDING_MS = {0: 0.0, 1: 0.15, 2: 1.40}
# Host arrays are sized by max_num_seqs; assumed.
SEAT_MS = 0.0008
SEATS_FREE = 16
# HCCL_BUFFSIZE sets the chunking: too small splits, too large spills; report A kept 128, the shape is assumed.
BUFFER_BEST_MB = 120
BUFFER_CURVE = 0.02
BUFFER_WORST = 0.5
BUFFER_DEFAULT_MB = 200
BUFFER_PREFILL = 0.01  # of prefill for each doubling, within a factor of four of the default; assumed
AIV_PREFILL = 1.01  # large messages compete with compute for vector cores; assumed
# Device allocator, as shares of the time that it costs.
PAGE_1G = 0.48  # with the next two: report A, row device allocator, 79 % of the system file's figure
PINNED_THREADS = 0.19
PINNED_EXPANDABLE = 0.12
MISALIGNED = -0.05  # base_addr_aligned_kb other than its default 16; assumed
FIXED_SEGMENTS = -1.1  # expandable_segments off: fragmentation; assumed
# report A: the leaner set replaced the first one once jemalloc was there: 95 % beats 79 % only with jemalloc.
ROUNDUP_ALONE = 0.55
ROUNDUP_WITH_JEMALLOC = 0.95
ROUNDUP_BY_DIVISIONS = {1: 0.3, 2: 0.55, 4: 0.8, 8: 0.95, 16: 1.0, 32: 0.92}
ALLOCATOR_PER_SEQUENCE = 0.06  # contention with concurrency; assumed
# Collectives by ranks, relative to two; a third and fourth rank leave the card. Assumed.
COLLECTIVES_BY_RANKS = {1: 0.0, 2: 1.0, 4: 1.25, 8: 1.5, 16: 1.8}
# TASK_QUEUE_ENABLE 2 moves workspace work off the launching thread, 0 moves launching onto it. Assumed.
TASK_QUEUE_HOST = {0: 1.25, 1: 1.0, 2: 0.85}
JEMALLOC_HOST = 0.98
BINDING_HOST = 0.97


@dataclass(frozen=True, slots=True)
class CostModel:
    """Step times of one system under one configuration. `sequences` are those that decode in the step."""

    system: System
    config: ServingConfig

    def step_ms(self, shape: StepShape) -> float:
        """Mean time of a step of this shape; with drafts a decode step is a whole cycle."""
        if shape.prompt_tokens:
            return self.mixed_step_ms(shape.prompt_tokens, shape.decoding)
        return self.decode_step_ms(shape.decoding)

    # --- one step --------------------------------------------------------------------------

    def decode_step_ms(self, sequences: int) -> float:
        """Mean time of a step in which nothing but `sequences` requests decode; with drafts: a whole cycle."""
        tokens = sequences * (1 + self.config.draft_tokens)
        size = self.config.captured(tokens)
        main = self._eager_ms(sequences, tokens) if size is None else self._captured_ms(sequences, tokens, size)
        return main + self._drafts_ms(sequences, eager=size is None) + self.cache_miss_ms()

    def mixed_step_ms(self, prompt_tokens: int, sequences: int) -> float:
        """Mean time of a step that computes prompt tokens too. Under full graphs such a step runs eagerly."""
        rows = 0.0
        if sequences:
            tokens = sequences * (1 + self.config.draft_tokens)
            rows = self._captured_ms(sequences, tokens, tokens) + self._drafts_ms(sequences, eager=False)
        return rows + self.prefill_ms(prompt_tokens) + self.cache_miss_ms()

    def prefill_ms(self, prompt_tokens: int) -> float:
        """What prompt tokens add to a step."""
        config, prefill = self.config, self.system.prefill
        doublings = max(-2.0, min(2.0, math.log2(config.buffer_mb / BUFFER_DEFAULT_MB)))
        factor = 1 - BUFFER_PREFILL * doublings
        factor *= AIV_PREFILL if config.aiv else 1.0
        factor *= PREFETCH_PREFILL if config.weight_prefetch else 1.0
        ranks = 2 / config.tensor_parallel
        return prefill.fixed_ms * self._host_factor() + prefill.per_token_ms * prompt_tokens * factor * ranks

    def cache_miss_ms(self) -> float:
        """Mean cost a step of operators that are planned again; already part of every step time."""
        return self.cache_miss_share * CACHE_MISS_MS

    @property
    def cache_miss_share(self) -> float:
        """Share of steps that take CACHE_MISS_MS longer."""
        limit = self.config.aclnn_cache_limit or 10_000
        return CACHE_MISS_SHARE * min(10.0, 10_000 / limit) if limit < 100_000 else 0.0

    # --- parts -----------------------------------------------------------------------------

    def active_weight_bytes(self, tokens: int) -> float:
        """Bytes that one die must read in a step of so many tokens."""
        weights = self.system.weights
        most = weights.experts / weights.experts_per_token
        experts = min(math.pow(max(tokens, 1), weights.reuse_exponent), most) * weights.expert_gb_per_token
        return (weights.dense_gb + experts) * 1e9 / self.config.tensor_parallel

    def _weights_ms(self, tokens: int) -> float:
        memory = self.system.memory
        time = self.active_weight_bytes(tokens) / (memory.bandwidth_gb_s * 1e9 * memory.efficiency) * 1e3
        fires = self.config.weight_prefetch and tokens >= self.system.weights.prefetch_token_threshold
        return time * (1 - PREFETCH_SHARE) if fires else time

    def _collectives_ms(self, tokens: int) -> float:
        decode, config = self.system.decode, self.config
        ranks = COLLECTIVES_BY_RANKS.get(config.tensor_parallel, COLLECTIVES_BY_RANKS[16])
        time = decode.collectives_ms * ranks * (1 + decode.collectives_per_token * (tokens - 1))
        time *= _buffer_factor(config.buffer_mb) / _buffer_factor(BUFFER_DEFAULT_MB)
        return time * (1 - decode.aiv_saving) if config.aiv else time

    def _device_ms(self, sequences: int, tokens: int, size: int) -> float:
        """The part of a step that a faster stack shortens. Padded rows cost kernels, but fetch no new expert."""
        decode, config = self.system.decode, self.config
        allocator = decode.device_allocator_ms * (1 + ALLOCATOR_PER_SEQUENCE * (sequences - 1))
        parts = (
            self._weights_ms(tokens),
            decode.kernels_ms + decode.kernels_per_token_ms * (size - 1),
            decode.dispatch_ms + decode.sync_ms,
            0.0 if config.static_kernel else decode.dynamic_shapes_ms,
            self._collectives_ms(size),
            allocator * (1 - allocator_gain(config.allocator, config.jemalloc)),
            decode.piecewise_ms if config.graph_mode is GraphMode.PIECEWISE else 0.0,
        )
        return math.fsum(parts) * self.system.stack.step_scale

    def _captured_ms(self, sequences: int, tokens: int, size: int) -> float:
        return self._device_ms(sequences, tokens, size) + self._host_ms(sequences)

    def _host_ms(self, sequences: int) -> float:
        """Host-side costs and savings of a step, whatever the stack."""
        config = self.config
        time = 0.0 if config.jemalloc else HOST_ALLOCATOR_MS + HOST_ALLOCATOR_PER_SEQUENCE_MS * (sequences - 1)
        time += OMP_MS.get(config.omp_num_threads or 0, 0.0)
        if config.cpu_binding:
            time -= BINDING_MS + BINDING_PER_SEQUENCE_MS * sequences
            time += OMP_BOUND_MS if (config.omp_num_threads or 0) > 4 else 0.0
        time += (AFFINITY_WITH_BINDING_MS if config.cpu_binding else AFFINITY_MS)[config.cpu_affinity]
        time -= BATCH_MEMCPY_MS if config.batch_memcpy else 0.0
        return time + SEAT_MS * (config.max_num_seqs - SEATS_FREE)

    def _host_factor(self) -> float:
        config = self.config
        factor = TASK_QUEUE_HOST[config.task_queue]
        factor *= JEMALLOC_HOST if config.jemalloc else 1.0
        return factor * BINDING_HOST if config.cpu_binding else factor

    def _eager_ms(self, sequences: int, tokens: int) -> float:
        """Launching is asynchronous: the slower of host and device counts."""
        decode = self.system.decode
        host = (decode.eager_host_ms + decode.eager_host_per_sequence_ms * sequences) * self._host_factor()
        return max(host * self.system.stack.step_scale, self._captured_ms(sequences, tokens, tokens))

    def _drafts_ms(self, sequences: int, *, eager: bool) -> float:
        speculation, drafts = self.system.speculation, self.config.draft_tokens
        if not drafts:
            return 0.0
        one = speculation.draft_ms + speculation.draft_per_sequence_ms * (sequences - 1)
        if eager:
            one = max(one, speculation.draft_eager_ms * self._host_factor())
        return (drafts * one + speculation.overhead_ms) * self.system.stack.step_scale

    # --- what a client sees ----------------------------------------------------------------

    def acceptance(self, position: int) -> float:
        """Chance that the draft at this position (from 0) is taken once all before it were."""
        known = self.system.speculation.acceptance
        return known[min(position, len(known) - 1)]

    def tokens_per_step(self) -> float:
        """Mean tokens that one decode step yields a sequence."""
        total = taken = 1.0
        for position in range(self.config.draft_tokens):
            taken *= self.acceptance(position)
            total += taken
        return total

    def closed_loop_tpot_ms(self, concurrency: int, prompt_tokens: int, output_tokens: int) -> float:
        """TPOT in the steady state of a closed loop: each request meets one prefill of every other stream."""
        running = min(concurrency, self.config.max_num_seqs)
        steps = (output_tokens - 1) / self.tokens_per_step()
        stall = self._prompt_ms(prompt_tokens, running - 1)
        return (steps * self.decode_step_ms(running) + (running - 1) * stall) / (output_tokens - 1)

    def ttft_ms(self, prompt_tokens: int) -> float:
        """Time to the first token of a lone request."""
        return self._prompt_ms(prompt_tokens, 0) + self.cache_miss_ms() * self._chunks(prompt_tokens, 0)

    def _prompt_ms(self, prompt_tokens: int, sequences: int) -> float:
        fixed = self.prefill_ms(0)
        return self.prefill_ms(prompt_tokens) + fixed * (self._chunks(prompt_tokens, sequences) - 1)

    def _chunks(self, prompt_tokens: int, sequences: int) -> int:
        room = self.config.max_num_batched_tokens - sequences * (1 + self.config.draft_tokens)
        return math.ceil(prompt_tokens / max(room, 1))


def allocator_gain(allocator: Allocator, jemalloc: bool) -> float:
    """Share of the device allocator's time that these options save; below 0 they cost more. At most 1."""
    if not allocator.expandable_segments:
        return FIXED_SEGMENTS
    gain = MISALIGNED if allocator.base_addr_aligned_kb != 16 else 0.0
    pinned = PINNED_THREADS * allocator.pinned_use_background_threads
    pinned += PINNED_EXPANDABLE * allocator.pin_memory_expandable_segments
    if allocator.page_size_1g:  # with other size options only page_size takes effect
        return gain + PAGE_1G + pinned
    if allocator.roundup_power2_divisions is not None:
        best = ROUNDUP_WITH_JEMALLOC if jemalloc else ROUNDUP_ALONE
        gain += best * ROUNDUP_BY_DIVISIONS.get(allocator.roundup_power2_divisions, 0.5)
        pinned *= 0.1  # little is left to save
    return min(gain + pinned, 1.0)


def _buffer_factor(buffer_mb: int) -> float:
    return 1 + min(BUFFER_CURVE * math.log2(buffer_mb / BUFFER_BEST_MB) ** 2, BUFFER_WORST)
