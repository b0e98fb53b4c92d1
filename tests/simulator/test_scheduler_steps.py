"""The scheduler step by step: budget, order, preemption, ranks, roles. Nothing depends on times."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.scheduling import BLOCK, batcher_of, drained, planned, stepped
from workers.simulator.model.settings import Role
from workers.simulator.serving.batching import Sequence

requests = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(requests, st.integers(0, 4), st.integers(1, 3), st.booleans(), st.integers(22, 60))
def test_every_token_comes_once_however_tight_it_is(
    asked: list[tuple[int, int]], drafts: int, ranks: int, chunked: bool, blocks: int
) -> None:
    batcher = batcher_of(
        blocks,
        drafts=drafts,
        data_parallel=ranks,
        chunked_prefill=chunked,
        max_num_batched_tokens=64,
        max_num_seqs=5,
    )
    sequences = [Sequence(prompt, answer, seed) for seed, (prompt, answer) in enumerate(asked)]
    for sequence in sequences:
        batcher.add(sequence)
    assert drained(batcher) == {sequence: sequence.max_tokens for sequence in sequences}
    assert all(sequence.finished for sequence in sequences)
    assert batcher.kv_usage() == 0
    assert not batcher.running
    assert not batcher.waiting


@settings(max_examples=30, deadline=None)
@given(requests, st.integers(0, 4), st.integers(8, 100))
def test_no_step_exceeds_budget_or_seats(asked: list[tuple[int, int]], drafts: int, budget: int) -> None:
    batcher = batcher_of(drafts=drafts, max_num_batched_tokens=budget, max_num_seqs=3)
    for seed, (prompt, answer) in enumerate(asked):
        batcher.add(Sequence(prompt, answer, seed))
    while (step := batcher.plan()) is not None:
        assert len(step.decoding) * (1 + drafts) + step.prompt_tokens <= budget
        assert len(batcher.running) <= 3
        batcher.finish(step)


def test_first_come_first_served() -> None:
    batcher = batcher_of(max_num_seqs=2, max_num_batched_tokens=64)
    sequences = [Sequence(100, 8, seed) for seed in range(6)]
    for sequence in sequences:
        batcher.add(sequence)
    firsts: list[Sequence] = []
    while (step := batcher.plan()) is not None:
        firsts += [o.sequence for o in batcher.finish(step) if o.sequence not in firsts]
    assert firsts == sequences


def test_a_sequence_without_room_holds_up_those_behind_it() -> None:
    batcher = batcher_of(blocks=20)
    large, huge, small = Sequence(12 * BLOCK, 8, 0), Sequence(12 * BLOCK, 8, 1), Sequence(10, 2, 2)
    for sequence in (large, huge, small):
        batcher.add(sequence)
    stepped(batcher)
    assert batcher.running == [large]
    assert list(batcher.waiting) == [huge, small]


def test_long_prompts_are_computed_in_chunks_while_others_decode() -> None:
    batcher = batcher_of()
    short = Sequence(10, 50, seed=1)
    batcher.add(short)
    stepped(batcher)
    batcher.add(Sequence(5000, 5, seed=2))
    chunks = []
    for _ in range(4):
        step = planned(batcher)
        chunks.append(step.prompt_tokens)
        batcher.finish(step)
    assert chunks == [2047, 2047, 906, 0]
    assert short.generated == 5


def test_a_step_knows_its_context_and_what_prompts_attend_to() -> None:
    batcher = batcher_of(max_num_batched_tokens=101)
    batcher.add(Sequence(30, 50, seed=1))
    stepped(batcher, 4)  # the prompt, then three tokens
    batcher.add(Sequence(150, 5, seed=2))
    (shape,) = planned(batcher).shapes
    assert (shape.decoding, shape.context_tokens) == (1, 33)
    assert (shape.prompt_tokens, shape.attended_tokens) == (100, sum(range(1, 101)))
    stepped(batcher)
    (shape,) = planned(batcher).shapes
    assert (shape.decoding, shape.context_tokens) == (1, 34)
    assert (shape.prompt_tokens, shape.attended_tokens) == (50, sum(range(101, 151)))


def test_without_chunks_a_prompt_goes_whole_or_waits() -> None:
    batcher = batcher_of(chunked_prefill=False, max_num_batched_tokens=100)
    sequences = [Sequence(prompt, 2, seed) for seed, prompt in enumerate((60, 60, 30, 250))]
    for sequence in sequences:
        batcher.add(sequence)
    parts = []
    while (step := batcher.plan()) is not None:
        parts.append([chunk for _, chunk in step.prompts])
        batcher.finish(step)
    assert parts == [[60], [60, 30], [250], []]


def test_the_youngest_is_preempted_and_computes_all_again() -> None:
    batcher = batcher_of(blocks=9)
    old, young = Sequence(4 * BLOCK, 60, 0), Sequence(4 * BLOCK - 1, 60, 1)
    for sequence in (old, young):
        batcher.add(sequence)
    while not batcher.preemptions:
        stepped(batcher)
    had = young.generated
    assert 0 < had < 60
    assert batcher.running == [old]
    assert list(batcher.waiting) == [young]
    late = Sequence(1, 1, 2)
    batcher.add(late)
    assert batcher.waiting[0] is young
    while not young.table:
        stepped(batcher)
    assert old.finished
    assert young.generated == had + 1  # the prompt and `had` tokens again gave one more
    assert drained(batcher)[young] == 60 - had - 1
    assert late.finished


def test_a_request_that_can_never_fit_is_refused() -> None:
    batcher = batcher_of(blocks=4)
    with pytest.raises(ValueError, match="exceed the KV cache"):
        batcher.add(Sequence(4 * BLOCK, 1, 0))
    batcher.add(Sequence(4 * BLOCK - 1, 1, 0))
    assert sum(drained(batcher).values()) == 1


def test_a_removed_sequence_yields_nothing_and_holds_nothing() -> None:
    batcher = batcher_of(max_num_seqs=2)
    gone, stays, waits = (Sequence(10, 5, seed) for seed in range(3))
    for sequence in (gone, stays, waits):
        batcher.add(sequence)
    step = planned(batcher)
    batcher.remove(gone)
    batcher.remove(waits)
    batcher.remove(Sequence(1, 1, 9))
    assert [output.sequence for output in batcher.finish(step)] == [stays]
    batcher.remove(stays)
    assert batcher.plan() is None
    assert batcher.kv_usage() == 0


def test_the_same_prompts_are_accepted_alike_in_every_launch() -> None:
    batcher = batcher_of(drafts=4)
    runs = []
    for _ in range(2):
        sequence = Sequence(prompt_tokens=10, max_tokens=4000, seed=5)
        runs.append([sequence.acceptance.accepted(batcher.chances) for _ in range(2000)])
    assert runs[0] == runs[1]
    assert 1 + sum(runs[0]) / 2000 == pytest.approx(batcher.cost.tokens_per_step(), rel=0.06)
    fewer = Sequence(10, 4000, seed=5)
    chances = batcher_of(drafts=2).chances
    assert [fewer.acceptance.accepted(chances) for _ in range(2000)] == [min(taken, 2) for taken in runs[0]]


# --- ranks of data parallelism -------------------------------------------------------------------


def test_equal_ranks_take_turns_and_a_queue_counts_fourfold() -> None:
    batcher = batcher_of(data_parallel=3, max_num_seqs=4)
    sequences = [Sequence(10, 20, seed) for seed in range(6)]
    for sequence in sequences:
        batcher.add(sequence)
    assert [sequence.rank for sequence in sequences] == [0, 1, 2, 0, 1, 2]
    stepped(batcher)
    batcher.remove(sequences[1])
    late = [Sequence(10, 20, seed) for seed in (6, 7)]
    for sequence in late:
        batcher.add(sequence)
    assert [sequence.rank for sequence in late] == [1, 2]  # one waits on rank 1 now


def test_ranks_run_in_lockstep_and_the_slowest_counts() -> None:
    batcher = batcher_of(data_parallel=2)
    for seed, prompt in enumerate((1000, 10)):
        batcher.add(Sequence(prompt, 5, seed))
    step = planned(batcher)
    assert [shape.prompt_tokens for shape in step.shapes] == [1000, 10]
    assert step.duration_ms == max(map(batcher.cost.step_ms, step.shapes)) == batcher.cost.step_ms(step.shapes[0])
    assert len(batcher.finish(step)) == 2
    assert len(batcher.running) == 2


def test_each_rank_has_its_own_cache_budget_and_seats() -> None:
    batcher = batcher_of(blocks=10, data_parallel=2, max_num_seqs=1, max_num_batched_tokens=100)
    for seed in range(4):
        batcher.add(Sequence(9 * BLOCK, 2, seed))
    step = planned(batcher)
    assert [shape.prompt_tokens for shape in step.shapes] == [100, 100]
    assert (len(batcher.running), len(batcher.waiting)) == (2, 2)
    assert batcher.kv_usage() == pytest.approx(0.9)
    assert sum(drained(batcher).values()) == 8


# --- prefill and decode apart --------------------------------------------------------------------


def test_prefill_ends_with_the_first_token_and_holds_the_state_until_release() -> None:
    batcher = batcher_of(blocks=10, role=Role.PREFILL)
    first, second = Sequence(8 * BLOCK, 100, 0), Sequence(8 * BLOCK, 100, 1)
    batcher.add(first)
    batcher.add(second)
    (output,) = stepped(batcher)
    assert (output.sequence, output.tokens) == (first, 1)
    assert first.finished
    assert batcher.running == []
    assert batcher.kv_usage() == pytest.approx(0.8)
    assert batcher.plan() is None  # no room for the second one
    batcher.release(first)
    assert batcher.kv_usage() == 0
    assert [o.sequence for o in stepped(batcher)] == [second]
    batcher.remove(second)
    batcher.release(second)
    assert batcher.kv_usage() == 0


def test_decode_goes_on_where_prefill_ended() -> None:
    batcher = batcher_of(role=Role.DECODE)
    sequence = Sequence(100, 5, 0, transferred=True)
    batcher.add(sequence)
    assert sequence.generated == 0
    step = planned(batcher)
    assert (sequence.computed, sequence.generated) == (100, 1)
    assert step.prompt_tokens == 0
    assert step.shapes[0].context_tokens == 100
    batcher.finish(step)
    assert sequence.generated == 2
    assert drained(batcher)[sequence] == 3
    assert batcher.prefix_queries == 0


def test_a_transferred_sequence_of_one_token_is_finished_at_once() -> None:
    batcher = batcher_of(role=Role.DECODE)
    sequence = Sequence(100, 1, 0, transferred=True)
    batcher.add(sequence)
    assert sequence.finished
    assert batcher.plan() is None


def test_preempted_on_a_decode_server_nothing_is_computed_again() -> None:
    batcher = batcher_of(blocks=9, role=Role.DECODE)
    sequences = [Sequence(4 * BLOCK - 2, 60, seed, transferred=True) for seed in range(2)]
    for sequence in sequences:
        batcher.add(sequence)
    prompt_tokens, tokens = 0, 0
    while (step := batcher.plan()) is not None:
        prompt_tokens += step.prompt_tokens
        tokens += sum(output.tokens for output in batcher.finish(step))
    assert batcher.preemptions > 0
    assert (prompt_tokens, tokens) == (0, 2 * 59)
