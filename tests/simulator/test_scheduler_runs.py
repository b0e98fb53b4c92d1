"""Many decode steps at once give what single steps give."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.scheduling import BLOCK, batcher_of
from workers.simulator.serving.batching import Batcher, Sequence
from workers.simulator.serving.runs import Runs

Ends = dict[int, tuple[int, float, float, int]]


def asked(requests: list[tuple[int, int]]) -> list[Sequence]:
    return [Sequence(prompt, answer, seed) for seed, (prompt, answer) in enumerate(requests)]


def by_steps(batcher: Batcher, requests: list[tuple[int, int]]) -> tuple[Ends, int]:
    """Tokens, ms of the first and the last one, and accepted drafts of each request; and how many steps it took."""
    for sequence in asked(requests):
        batcher.add(sequence)
    ends: Ends = {}
    now, count = 0.0, 0
    while (step := batcher.plan()) is not None:
        now += step.duration_ms
        count += 1
        for output in batcher.finish(step):
            tokens, first, _, accepted = ends.get(output.sequence.seed, (0, now, now, 0))
            ends[output.sequence.seed] = (tokens + output.tokens, first, now, accepted + output.accepted)
    return ends, count


def by_runs(batcher: Batcher, requests: list[tuple[int, int]], slice_ms: float = math.inf) -> tuple[Ends, int]:
    for sequence in asked(requests):
        batcher.add(sequence)
    ends: Ends = {}
    runs, now, count = Runs(batcher), 0.0, 0
    while (run := runs.plan(slice_ms)) is not None:
        first_ms, last_ms = now + float(run.ends_ms[0]), now + float(run.ends_ms[-1])
        assert all(end < slice_ms for end in run.ends_ms[:-1])
        count += run.steps
        for output in runs.finish(run):
            tokens, first, _, accepted = ends.get(output.sequence.seed, (0, first_ms, first_ms, 0))
            ends[output.sequence.seed] = (tokens + output.tokens, first, last_ms, accepted + output.accepted)
        now = last_ms
    return ends, count


def same(one: tuple[Ends, int], other: tuple[Ends, int], rel: float) -> None:
    assert one[1] == other[1]
    assert one[0].keys() == other[0].keys()
    for seed, (tokens, first, last, accepted) in one[0].items():
        assert other[0][seed][::3] == (tokens, accepted)
        assert other[0][seed][1:3] == pytest.approx((first, last), rel=rel)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 60)), min_size=1, max_size=10),
    st.integers(0, 4),
    st.integers(1, 2),
    st.integers(23, 60),
    st.sampled_from([math.inf, 200.0, 5.0]),
)
def test_runs_equal_single_steps(
    requests: list[tuple[int, int]], drafts: int, ranks: int, blocks: int, slice_ms: float
) -> None:
    def batcher() -> Batcher:
        return batcher_of(blocks, drafts=drafts, data_parallel=ranks, max_num_seqs=4, max_num_batched_tokens=128)

    one, other = batcher(), batcher()
    same(by_steps(one, requests), by_runs(other, requests, slice_ms), rel=1e-9)
    assert one.preemptions == other.preemptions
    assert other.kv_usage() == 0


@pytest.mark.parametrize("drafts", [0, 3])
def test_the_noise_of_each_step_is_the_same_too(drafts: int) -> None:
    requests = [(50, 300), (70, 200), (20, 100)]
    one, other = (batcher_of(drafts=drafts, noise=True) for _ in range(2))
    same(by_steps(one, requests), by_runs(other, requests, 300.0), rel=1e-4)  # the drift's clock is not so fine


def test_a_run_ends_with_its_first_sequence() -> None:
    batcher = batcher_of()
    for sequence in asked([(20, 30), (20, 50)]):
        batcher.add(sequence)
    runs, steps = Runs(batcher), []
    while (run := runs.plan()) is not None:
        steps.append(run.steps)
        assert np.all(np.diff(run.ends_ms) > 0)
        runs.finish(run)
    assert steps == [1, 29, 20]


def test_a_run_can_be_limited() -> None:
    batcher = batcher_of()
    batcher.add(Sequence(20, 100, 0))
    runs = Runs(batcher)
    for most, steps in ((10, 1), (10, 10), (1, 1), (1000, 88)):
        run = runs.plan(most_steps=most)
        assert run is not None
        assert run.steps == steps
        runs.finish(run)
    assert runs.plan() is None


def test_a_run_stops_before_blocks_run_out() -> None:
    batcher = batcher_of(blocks=9)
    requests = [(4 * BLOCK, 60), (4 * BLOCK - 1, 60)]
    ends, _ = by_runs(batcher, requests)
    assert batcher.preemptions > 0
    assert [ends[seed][0] for seed in (0, 1)] == [60, 60]


def test_a_sequence_removed_during_a_run_yields_nothing() -> None:
    batcher = batcher_of()
    gone, stays = asked([(20, 30), (20, 30)])
    batcher.add(gone)
    batcher.add(stays)
    runs = Runs(batcher)
    run = runs.plan()
    assert run is not None
    runs.finish(run)
    run = runs.plan()
    assert run is not None
    batcher.remove(gone)
    assert [output.sequence for output in runs.finish(run)] == [stays]
