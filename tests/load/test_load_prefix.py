"""The shared prefix, and what a level finds in the server's prefix cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.domain.measurement import summarise
from autotune.domain.workload import LoadLevel
from tests.load.mock_endpoint import MockEndpoint, Script, Served
from tests.load.running import run, spec_of
from workers.load.prompts import WARM_UP, PromptSource
from workers.load.refusal import PromptsExhausted
from workers.load.spec import LoadSpec

LEVELS = (LoadLevel(concurrency=1, requests=3), LoadLevel(concurrency=2, requests=4, rate_per_s=100))
VLLM, SGLANG = "/reset_prefix_cache", "/flush_cache"


def prefixed(url: str = "http://h:1", prefix: int = 24, **changes: object) -> LoadSpec:
    spec = spec_of(url, *LEVELS)
    workload = spec.workload.model_copy(update={"shared_prefix_tokens": prefix})
    return spec.model_copy(update={"workload": workload, **changes})


def prompts(spec: LoadSpec) -> list[list[int]]:
    source = PromptSource(spec)
    counts = {WARM_UP: spec.workload.warmup_requests, **{level.name: level.requests for level in LEVELS}}
    return [source.prompt(name, index) for name, count in counts.items() for index in range(count)]


def test_all_prompts_begin_alike_and_go_on_differently() -> None:
    found = prompts(prefixed())
    assert {len(prompt) for prompt in found} == {32}
    assert len({tuple(prompt[:24]) for prompt in found}) == 1
    assert len({tuple(prompt[24:]) for prompt in found}) == len(found) == 9
    assert all(100 <= token <= 999 for prompt in found for token in prompt)


def test_the_prefix_is_the_studys_and_the_rest_is_the_trials() -> None:
    first = prompts(prefixed(seed=1, study_seed=7))
    second = prompts(prefixed(seed=2, study_seed=7))
    third = prompts(prefixed(seed=1, study_seed=8))
    assert first[0][:24] == second[0][:24] != third[0][:24]
    assert first[0][24:] == third[0][24:] != second[0][24:]


def test_without_a_prefix_the_study_seed_changes_no_prompt() -> None:
    assert prompts(prefixed(prefix=0, study_seed=1)) == prompts(prefixed(prefix=0, study_seed=2))


def test_too_few_prompts_for_the_rest_of_their_own() -> None:
    few = prefixed(prefix=31, prompt_token_low=0, prompt_token_high=9)
    with pytest.raises(PromptsExhausted, match="9 different prompts of 1 tokens of their own are asked for, 10 exist"):
        PromptSource(few)


def test_priming_asks_for_one_token_of_the_prefix_alone() -> None:
    ((path, body),) = PromptSource(prefixed()).primings()
    assert path == "/v1/completions"
    told = json.loads(body)
    assert told["prompt"] == prompts(prefixed())[0][:24]
    assert told["max_tokens"] == 1
    assert PromptSource(prefixed(prefix=0)).primings() == []


def primings(served: list[Served], length: int = 24) -> list[int]:
    """Which of the requests brought the prefix alone."""
    return [number for number, one in enumerate(served) if len(one.prompt) == length]


@pytest.mark.parametrize(
    ("controls", "asked", "reset"),
    [
        ({VLLM: [200]}, [VLLM], VLLM),
        ({SGLANG: [200]}, [VLLM, SGLANG], SGLANG),
        ({SGLANG: [400, 400, 200]}, [VLLM, SGLANG, SGLANG, SGLANG], SGLANG),  # still busy with the last answer
        ({}, [VLLM, SGLANG], None),
    ],
    ids=["vllm", "sglang", "busy", "neither"],
)
def test_each_level_finds_the_prefix_and_nothing_else(
    tmp_path: Path, controls: Mapping[str, list[int]], asked: list[str], reset: str | None
) -> None:
    with MockEndpoint(controls=controls) as endpoint:
        result = run(prefixed(endpoint.url), tmp_path)
    # The warm-up's priming and two requests; then reset, priming and the level's requests, twice.
    assert primings(endpoint.served) == [0, 3, 7]
    assert [one.body["max_tokens"] for one in endpoint.served if len(one.prompt) == 24] == [1, 1, 1]
    assert len(endpoint.served) == 3 + 2 + 3 + 4
    assert [path for path, before in endpoint.controlled if before == 3] == asked
    assert {before for _, before in endpoint.controlled} == {3, 7}
    assert result.cache_reset == reset
    assert [len(samples) for samples in result.levels.values()] == [3, 4]


def test_without_a_prefix_the_cache_is_emptied_all_the_same(tmp_path: Path) -> None:
    with MockEndpoint(controls={VLLM: [200]}) as endpoint:
        run(spec_of(endpoint.url, *LEVELS), tmp_path)
    assert endpoint.controlled == [(VLLM, 2), (VLLM, 5)]
    assert {len(one.prompt) for one in endpoint.served} == {32}


class PrefixCache:
    """What a server with a cache of eight-token blocks finds of each prompt."""

    def __init__(self) -> None:
        self._known: set[tuple[int, ...]] = set()

    def found(self, served: Served) -> int | None:
        blocks = [served.prompt[:end] for end in range(8, len(served.prompt) + 1, 8)]
        hits = [block for block in blocks if block in self._known]
        self._known.update(blocks)
        return 8 * len(hits) or None  # as engines do, which leave a zero out


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_cached_tokens_are_the_servers(tmp_path: Path, api: str) -> None:
    cache = PrefixCache()
    script = Script(cached=cache.found if api == "completions" else lambda _: 5)
    with MockEndpoint(script) as endpoint:
        result = run(prefixed(endpoint.url, api=api), tmp_path)
    expected = 24 if api == "completions" else 5
    for level in LEVELS:
        samples = result.levels[level.name]
        assert [sample.cached_tokens for sample in samples] == [expected] * level.requests
        figures = summarise(level.name, level.concurrency, samples, level.rate_per_s)
        if api == "completions":
            assert figures.uncached_tokens_mean == 32 - 24


def test_a_server_that_says_nothing_of_its_cache(tmp_path: Path) -> None:
    with MockEndpoint() as endpoint:
        result = run(prefixed(endpoint.url), tmp_path)
    assert {sample.cached_tokens for sample in result.levels["c1"]} == {None}


def test_a_priming_that_fails_is_no_fault_of_the_run(tmp_path: Path) -> None:
    with MockEndpoint(lambda number: Script(status=503) if number == 0 else Script()) as endpoint:
        result = run(prefixed(endpoint.url), tmp_path)
    assert {one.path for one in endpoint.served} == {"/v1/completions"}
    assert {sample.error for sample in (*result.warm_up, *result.levels["c1"])} == {None}
