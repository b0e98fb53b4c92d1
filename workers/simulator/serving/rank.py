"""Scheduling on one rank of the data-parallel group: its queue, its KV cache, its token budget.

Every running sequence decodes in each step while the budget lasts; what is left of it computes prompts, in order of
arrival and in chunks. A sequence starts when a seat is free and the cache has blocks for its whole prompt; later
ones wait behind it. Blocks for the answer are taken as it grows. When none is left, the sequence that started last
gives its blocks up and goes back to the head of the queue: it computes prompt and answer again, or, where its
prompt came from another server, gets its KV back from host memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.step import StepShape
from workers.simulator.serving.kv_cache import Hit, KvCache
from workers.simulator.serving.sequence import Sequence


@dataclass(slots=True)
class Work:
    """What a rank does in a step. `settled`: the next step is the same but for tokens, unless a sequence ends."""

    decoding: list[Sequence] = field(default_factory=list)
    prompts: list[tuple[Sequence, int]] = field(default_factory=list)
    settled: bool = True

    def __bool__(self) -> bool:
        return bool(self.decoding or self.prompts)

    def shape(self) -> StepShape:
        """Context is what the decoding sequences have in the cache; a prompt's token also attends to itself."""
        return StepShape(
            decoding=len(self.decoding),
            context_tokens=sum(sequence.computed for sequence in self.decoding),
            prompt_tokens=sum(chunk for _, chunk in self.prompts),
            attended_tokens=sum(chunk * s.computed + chunk * (chunk + 1) // 2 for s, chunk in self.prompts),
        )


class Rank:
    """One rank with room for `kv_tokens` in its cache."""

    def __init__(self, config: ServingConfig, kv_tokens: int) -> None:
        self._config = config
        self._rows = 1 + config.draft_tokens
        capacity = max(-(-kv_tokens // config.block_size), 1)
        host = int(capacity * config.host_cache_ratio) if config.hierarchical_cache else 0
        self.cache = KvCache(capacity, host)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.delivered: set[Sequence] = set()  # prompts whose KV waits to be fetched
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.prefix_host_hits = 0

    def plan(self) -> Work:
        """The rank's part of the next step. Planning again before it is booked gives the same."""
        config, work = self._config, Work()
        budget = config.max_num_batched_tokens
        index = 0
        while index < len(self.running):  # the list may lose its end on the way
            sequence = self.running[index]
            index += 1
            if not sequence.decodes or budget < self._rows:
                continue
            while not self.grow(sequence, 1):
                work.settled = False
                if self._preempt_last() is sequence:
                    break
            else:
                work.decoding.append(sequence)
                budget -= self._rows
        for sequence in self.running:
            if not sequence.decodes:
                budget -= self._chunk(work, sequence, budget)
        if work.settled:  # what was just taken back is not given away again in the same step
            self._admit(work, budget)
        return work

    def grow(self, sequence: Sequence, cycles: int) -> bool:
        """Blocks for so many decode cycles that take all their drafts; False when there are too few."""
        assert sequence.table is not None, "it runs"
        return self.cache.grow(sequence.table, self.blocks_after(sequence, cycles))

    def blocks_after(self, sequence: Sequence, cycles: int) -> int:
        """Blocks that a sequence needs at most through so many cycles."""
        most = min(sequence.computed + cycles * self._rows, sequence.prompt_tokens + sequence.max_tokens)
        return self._blocks(most)

    def compute(self, sequence: Sequence, tokens: int) -> None:
        """Prompt tokens are in the cache now; once all are, the next token is there."""
        assert sequence.table is not None, "it runs"
        sequence.computed += tokens
        if sequence.blocks and self._config.prefix_caching:
            full = min(sequence.computed, sequence.prompt_tokens) // self._config.block_size
            self.cache.publish(sequence.table, sequence.blocks, full)
        if sequence.computed == sequence.known:
            sequence.generated += 1

    def settle(self) -> None:
        """Let finished sequences go."""
        finished = [sequence for sequence in self.running if sequence.finished]
        if not finished:
            return
        self.running = [sequence for sequence in self.running if not sequence.finished]
        for sequence in finished:
            if sequence.prompt_only:
                self.delivered.add(sequence)
            else:
                self._close(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence wherever it is."""
        if sequence.table is not None:
            self.delivered.discard(sequence)
            if sequence in self.running:
                self.running.remove(sequence)
            self._close(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def fits(self, sequence: Sequence) -> bool:
        """Whether the cache can ever hold a sequence to its end."""
        answer = 0 if sequence.prompt_only else sequence.max_tokens
        return self._blocks(sequence.prompt_tokens + answer) <= self.cache.capacity

    # --- parts of a plan --------------------------------------------------------------------

    def _admit(self, work: Work, budget: int) -> None:
        size = self._config.block_size
        while self.waiting and budget > 0 and len(self.running) < self._config.max_num_seqs:
            sequence = self.waiting[0]
            if sequence.transferred:
                if budget < self._rows or not self._resume(sequence):
                    return
                work.decoding.append(sequence)
                budget -= self._rows
            else:
                hit = self._find(sequence)
                if not self._room(work, sequence.known - hit.blocks * size, budget) or not self._begin(sequence, hit):
                    return
                budget -= self._chunk(work, sequence, budget)
            self.running.append(self.waiting.popleft())

    def _begin(self, sequence: Sequence, hit: Hit) -> bool:
        """Give a prompt its blocks; False when there are too few."""
        sequence.table = self.cache.open(sequence.blocks, hit, self._blocks(sequence.known))
        if sequence.table is None:
            return False
        sequence.computed = hit.blocks * self._config.block_size
        if not sequence.preempted:
            sequence.cached = sequence.computed
            if self._config.prefix_caching:
                self.prefix_queries += sequence.prompt_tokens
            self.prefix_hits += sequence.cached
            self.prefix_host_hits += hit.host * self._config.block_size
        return True

    def _resume(self, sequence: Sequence) -> bool:
        """Give a sequence with a computed prompt its blocks; False when there are too few."""
        known = sequence.prompt_tokens + max(sequence.generated, 1)
        most = min(known - 1 + self._rows, sequence.prompt_tokens + sequence.max_tokens)
        sequence.table = self.cache.open((), Hit(), self._blocks(most))
        if sequence.table is None:
            return False
        sequence.generated = max(sequence.generated, 1)
        sequence.computed = known - 1
        return True

    def _find(self, sequence: Sequence) -> Hit:
        """What the cache has of a prompt. The last token is always computed: the next one comes out of it."""
        if not self._config.prefix_caching:
            return Hit()
        return self.cache.find(sequence.blocks[: (sequence.known - 1) // self._config.block_size])

    def _chunk(self, work: Work, sequence: Sequence, budget: int) -> int:
        """Plan the next piece of a prompt; returns its tokens."""
        left = sequence.known - sequence.computed
        if not self._room(work, left, budget):
            return 0
        chunk = min(left, budget) if self._config.chunked_prefill else left
        work.prompts.append((sequence, chunk))
        return chunk

    def _room(self, work: Work, tokens: int, budget: int) -> bool:
        """Without chunks a prompt goes whole, one that is longer than any budget as the step's only one."""
        if self._config.chunked_prefill:
            return budget > 0
        return tokens <= budget or (tokens > self._config.max_num_batched_tokens and not work.prompts and budget > 0)

    def _preempt_last(self) -> Sequence:
        sequence = self.running.pop()
        self._close(sequence)
        sequence.computed = 0
        sequence.preempted += 1
        self.waiting.appendleft(sequence)
        self.preemptions += 1
        return sequence

    def _close(self, sequence: Sequence) -> None:
        assert sequence.table is not None, "only sequences with blocks are closed"
        self.cache.close(sequence.table)
        sequence.table = None

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._config.block_size)
