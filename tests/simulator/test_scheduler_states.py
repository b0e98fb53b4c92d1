"""The scheduler under requests that come and go in any order: its books of KV blocks are always right."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tests.simulator.scheduling import BLOCK, batcher_of
from workers.simulator.model.settings import Role
from workers.simulator.serving.batching import Batcher, Output, Sequence
from workers.simulator.serving.prefix_cache import prefix_chain
from workers.simulator.serving.runs import Runs

BLOCKS = 12


class Scheduling(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.received: dict[Sequence, int] = {}
        self.dropped: set[Sequence] = set()

    @initialize(
        drafts=st.integers(0, 3),
        ranks=st.integers(1, 2),
        chunked=st.booleans(),
        caching=st.booleans(),
        hierarchical=st.booleans(),
        role=st.sampled_from(Role),
    )
    def start(self, drafts: int, ranks: int, chunked: bool, caching: bool, hierarchical: bool, role: Role) -> None:
        self.batcher: Batcher = batcher_of(
            BLOCKS,
            drafts=drafts,
            data_parallel=ranks,
            chunked_prefill=chunked,
            prefix_caching=caching,
            hierarchical_cache=hierarchical,
            role=role,
            max_num_seqs=3,
            max_num_batched_tokens=40,
        )
        self.runs = Runs(self.batcher)
        self.role = role

    @rule(
        target=sequences,
        group=st.sampled_from("ab"),
        shared=st.integers(0, 6 * BLOCK),
        prompt=st.integers(1, 7 * BLOCK),
        answer=st.integers(1, 4 * BLOCK),
    )
    def add(self, group: str, shared: int, prompt: int, answer: int) -> Sequence:
        self.count += 1
        sequence = Sequence(
            prompt,
            answer,
            self.count,
            blocks=prefix_chain(group, shared, str(self.count), prompt, BLOCK),
            transferred=self.role is Role.DECODE,
        )
        self.batcher.add(sequence)
        self.received[sequence] = 1 if sequence.transferred else 0
        return sequence

    @rule(sequence=sequences)
    def drop(self, sequence: Sequence) -> None:
        self.batcher.remove(sequence)
        self.dropped.add(sequence)

    @rule(sequence=sequences)
    def fetch(self, sequence: Sequence) -> None:
        if self.role is Role.PREFILL and sequence.finished:
            self.batcher.release(sequence)

    @rule(steps=st.integers(1, 10))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            if (step := self.batcher.plan()) is not None:
                self._book(self.batcher.finish(step))

    @rule(until_ms=st.sampled_from([1.0, 50.0, 1e9]))
    def run_on(self, until_ms: float) -> None:
        if (run := self.runs.plan(until_ms)) is not None:
            self._book(self.runs.finish(run))

    @rule()
    def plan_without_booking(self) -> None:
        self.batcher.plan()

    @rule()
    def reset(self) -> None:
        holds = self.batcher.kv_usage() > 0
        assert self.batcher.reset_prefix_cache() is not holds

    @invariant()
    def books_are_right(self) -> None:
        for rank in self.batcher.ranks:
            cache, tables = rank.cache, [s.table for s in [*rank.running, *rank.delivered] if s.table is not None]
            assert len(tables) == len(rank.running) + len(rank.delivered)
            shared = {block for table in tables for block in table.hashed}
            plain = [table.plain for table in tables]
            assert min(plain, default=0) >= 0
            assert cache.held == len(shared) + sum(plain) <= cache.capacity == BLOCKS
            assert len(shared) <= cache.cached <= cache.capacity
            assert cache.host_cached <= cache.host_capacity
            assert all(s.table is None for s in rank.waiting)
            for sequence in rank.running:
                assert sequence.table is not None
                assert sequence.computed <= sequence.table.blocks * BLOCK
                assert sequence.cached < sequence.prompt_tokens
        assert all(s.generated == tokens for s, tokens in self.received.items() if tokens > 1)

    def teardown(self) -> None:
        if not hasattr(self, "batcher"):
            return
        for _ in range(20_000):
            for sequence in self.received:
                self.fetch(sequence)
            if (step := self.batcher.plan()) is None:
                break
            self._book(self.batcher.finish(step))
        for sequence, tokens in self.received.items():
            self.fetch(sequence)
            if sequence not in self.dropped:
                assert sequence.finished
                assert tokens == (1 if self.role is Role.PREFILL else sequence.max_tokens)
        assert not self.batcher.running
        assert not self.batcher.waiting
        assert self.batcher.kv_usage() == 0
        assert self.batcher.reset_prefix_cache()
        assert all(rank.cache.free == rank.cache.capacity for rank in self.batcher.ranks)

    def _book(self, outputs: list[Output]) -> None:
        for output in outputs:
            assert output.tokens > 0
            self.received[output.sequence] += output.tokens


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
