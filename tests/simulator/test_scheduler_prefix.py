"""The prefix cache: what is shared, what is evicted, what is counted."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.scheduling import BLOCK, batcher_of, drained, planned, stepped
from workers.simulator.serving.batching import Batcher, Sequence
from workers.simulator.serving.kv_cache import BlockTable, Hit, KvCache
from workers.simulator.serving.prefix_cache import block_hashes, prefix_chain


def request(tokens: list[int], answer: int = 1, seed: int = 0) -> Sequence:
    return Sequence(len(tokens), answer, seed, blocks=block_hashes(tokens, BLOCK))


def served(batcher: Batcher, tokens: list[int]) -> int:
    """Tokens that a request of this prompt finds in the cache, once it is alone."""
    sequence = request(tokens)
    batcher.add(sequence)
    drained(batcher)
    return sequence.cached


# --- chains ------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40), st.integers(1, 5))
def test_chains_agree_exactly_as_far_as_whole_blocks_do(one: list[int], other: list[int], size: int) -> None:
    chains = block_hashes(one, size), block_hashes(other, size)
    assert [len(chain) for chain in chains] == [len(one) // size, len(other) // size]
    for number, (left, right) in enumerate(zip(*chains, strict=False), 1):
        assert (left == right) == (one[: number * size] == other[: number * size])


def test_chains_are_the_same_in_every_process() -> None:
    code = (
        "from workers.simulator.serving.prefix_cache import block_hashes, prefix_chain;"
        "print(block_hashes(range(40), 16), prefix_chain('g', 20, 'u', 50, 16))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert answer == f"{block_hashes(range(40), 16)} {prefix_chain('g', 20, 'u', 50, 16)}"


@given(st.integers(0, 100), st.integers(1, 120), st.integers(1, 120), st.integers(1, 16))
def test_chains_by_name_share_what_chains_of_tokens_share(shared: int, one: int, other: int, size: int) -> None:
    dice = random.Random(5)
    common = [dice.randrange(10**6) for _ in range(shared)]

    def both(unique: str, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        own = random.Random(unique)
        tokens = (common + [own.randrange(10**6) for _ in range(length)])[:length]
        return block_hashes(tokens, size), prefix_chain("group", shared, unique, length, size)

    (first, named_first), (second, named_second) = both("a", one), both("b", other)
    assert len(first) == len(named_first)
    equal = [left == right for left, right in zip(first, second, strict=False)]
    assert equal == [left == right for left, right in zip(named_first, named_second, strict=False)]
    assert prefix_chain("group", shared, "a", one, size) == named_first
    assert not set(prefix_chain("elsewhere", shared, "a", one, size)) & set(named_first)


# --- sharing in the engine -----------------------------------------------------------------------


def test_a_prefix_is_found_in_full_blocks_and_the_last_token_is_always_computed() -> None:
    batcher = batcher_of()
    prompt = list(range(5 * BLOCK))
    assert served(batcher, prompt) == 0
    assert served(batcher, prompt) == 4 * BLOCK  # all of it would leave nothing to compute
    assert served(batcher, [*prompt, 7]) == 5 * BLOCK
    assert served(batcher, prompt[: 2 * BLOCK + 3]) == 2 * BLOCK
    assert served(batcher, [*prompt[: 3 * BLOCK - 1], 999, *prompt[3 * BLOCK :]]) == 2 * BLOCK
    assert batcher.prefix_hits == (4 + 5 + 2 + 2) * BLOCK
    assert batcher.prefix_queries == 4 * 5 * BLOCK + 1 + 2 * BLOCK + 3
    assert batcher.kv_usage() == 0


def test_only_what_is_missing_is_computed_and_it_attends_to_the_rest() -> None:
    batcher = batcher_of()
    served(batcher, list(range(100)))
    batcher.add(request(list(range(150))))
    (shape,) = planned(batcher).shapes
    assert shape.prompt_tokens == 150 - 96
    assert shape.attended_tokens == sum(range(97, 151))


def test_sequences_that_run_together_hold_a_shared_prefix_once() -> None:
    batcher = batcher_of(blocks=10)
    prompt = list(range(4 * BLOCK))
    batcher.add(request(prompt, answer=40, seed=1))
    stepped(batcher, 2)
    before = batcher.kv_usage()
    batcher.add(request([*prompt, 1, 2, 3], answer=40, seed=2))
    stepped(batcher)
    assert before == pytest.approx(0.5)
    assert batcher.kv_usage() == pytest.approx(0.6)
    drained(batcher)
    assert batcher.kv_usage() == 0


def test_nothing_is_shared_when_switched_off_or_without_a_chain() -> None:
    off = batcher_of(prefix_caching=False)
    assert [served(off, list(range(64))) for _ in range(2)] == [0, 0]
    assert off.prefix_queries == 0
    unknown = batcher_of()
    for seed in range(2):
        unknown.add(Sequence(64, 1, seed))
        drained(unknown)
    assert (unknown.prefix_queries, unknown.prefix_hits) == (128, 0)


def test_the_longest_unused_prefix_goes_first_and_its_end_before_its_beginning() -> None:
    batcher = batcher_of(blocks=10)
    prompts = {name: [name * 1000 + i for i in range(4 * BLOCK - 1)] for name in (1, 2, 3)}
    for name in (1, 2):
        served(batcher, prompts[name])  # three full blocks stay
    assert served(batcher, prompts[1]) == 3 * BLOCK  # now 2 is the longest unused
    served(batcher, [*range(7 * BLOCK)])  # four places were empty: three blocks must go
    cache = batcher.ranks[0].cache
    assert cache.find(block_hashes(prompts[2], BLOCK)) == Hit()
    assert cache.find(block_hashes(prompts[1], BLOCK)) == Hit(3)
    served(batcher, [-token for token in range(2 * BLOCK)])  # all places are taken, two more are needed
    assert cache.find(block_hashes(prompts[1], BLOCK)) == Hit(1)


def test_reset_forgets_everything_unless_something_runs() -> None:
    batcher = batcher_of()
    prompt = list(range(64))
    served(batcher, prompt)
    batcher.add(request(prompt, answer=3))
    stepped(batcher)
    assert not batcher.reset_prefix_cache()
    drained(batcher)
    assert served(batcher, prompt) == 3 * BLOCK
    assert batcher.reset_prefix_cache()
    assert served(batcher, prompt) == 0


def test_evicted_blocks_come_back_from_the_host() -> None:
    batcher = batcher_of(blocks=10, hierarchical_cache=True, host_cache_ratio=0.5)
    prompt = list(range(4 * BLOCK - 1))
    served(batcher, prompt)
    served(batcher, [*range(1000, 1000 + 10 * BLOCK - 1)])  # takes all of the device
    assert batcher.ranks[0].cache.host_cached == 3
    assert served(batcher, prompt) == 3 * BLOCK
    assert (batcher.prefix_hits, batcher.prefix_host_hits) == (3 * BLOCK, 3 * BLOCK)
    served(batcher, [*range(5000, 5000 + 10 * BLOCK - 1)])
    assert batcher.ranks[0].cache.host_cached == 5  # as many as it has room for: the latest


def test_each_rank_knows_only_its_own_prefixes() -> None:
    batcher = batcher_of(data_parallel=2)
    prompt = list(range(100))
    assert [served(batcher, prompt) for _ in range(4)] == [0, 0, 96, 96]


def test_a_preempted_sequence_finds_its_own_prompt_again_and_counts_once() -> None:
    batcher = batcher_of(blocks=9)
    old, young = request(list(range(64)), 60), request(list(range(1000, 1064)), 60, seed=1)
    batcher.add(old)
    batcher.add(young)
    drained(batcher)
    assert batcher.preemptions > 0
    assert young.preempted > 0
    assert (young.cached, batcher.prefix_queries, batcher.prefix_hits) == (0, 128, 0)


# --- the cache by itself -------------------------------------------------------------------------


def opened(cache: KvCache, chain: tuple[int, ...], blocks: int) -> BlockTable:
    table = cache.open(chain, cache.find(chain), blocks)
    assert table is not None
    return table


def test_a_hit_does_not_count_as_room_for_itself() -> None:
    cache = KvCache(4)
    table = opened(cache, (1, 2, 3), 3)
    cache.publish(table, (1, 2, 3), 3)
    cache.close(table)
    assert (cache.free, cache.cached) == (4, 3)
    assert cache.open((1, 2, 3), Hit(3), 5) is None
    assert (cache.free, cache.cached) == (4, 3)
    assert opened(cache, (1, 2, 3), 4).hashed == [1, 2, 3]
    assert cache.free == 0


def test_what_two_computed_at_the_same_time_is_kept_once() -> None:
    cache = KvCache(10)
    tables = [opened(cache, (1, 2), 2) for _ in range(2)]
    for table in tables:
        cache.publish(table, (1, 2), 2)
    assert cache.held == 4
    for table in tables:
        cache.close(table)
    assert (cache.held, cache.cached, cache.free) == (0, 2, 10)
