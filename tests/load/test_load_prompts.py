"""Prompts: the same for the same seed, never twice, of exact length."""

from __future__ import annotations

import json

import pytest

from autotune.domain.workload import LoadLevel, Workload
from workers.load.prompts import WARM_UP, PromptSource
from workers.load.refusal import PromptsExhausted
from workers.load.spec import LoadSpec


def spec(seed: int = 1, length: int = 20, requests: int = 30, **more: object) -> LoadSpec:
    levels = tuple(LoadLevel(concurrency=c, requests=requests) for c in (1, 8))
    workload = Workload(prompt_tokens=length, output_tokens=5, levels=levels, warmup_requests=10)
    return LoadSpec.model_validate({"base_url": "http://h:1", "model": "m", "workload": workload, "seed": seed, **more})


def prompts(of: LoadSpec) -> list[tuple[int, ...]]:
    source = PromptSource(of)
    names = [(WARM_UP, 10), ("c1", 30), ("c8", 30)]
    return [tuple(source.prompt(name, index)) for name, count in names for index in range(count)]


def test_same_seed_same_prompts() -> None:
    assert prompts(spec(4)) == prompts(spec(4))
    assert not set(prompts(spec(4))) & set(prompts(spec(5)))


def test_a_prompt_depends_on_its_level_and_index_alone() -> None:
    assert PromptSource(spec()).prompt("c8", 7) == list(prompts(spec())[47])


def test_all_different_and_in_range() -> None:
    found = prompts(spec())
    assert len(set(found)) == 70
    assert {len(prompt) for prompt in found} == {20}
    assert all(100 <= token <= 999 for prompt in found for token in prompt)
    assert len({prompt[:16] for prompt in found}) == 70  # not even a first cache block in common


def test_short_prompts_are_drawn_again_until_they_differ() -> None:
    found = prompts(spec(length=2, prompt_token_low=0, prompt_token_high=12))  # 169 exist, 70 are used
    assert len(set(found)) == 70


def test_too_few_different_prompts() -> None:
    with pytest.raises(PromptsExhausted, match=r"70 different prompts of 2 tokens .* 100 exist"):
        PromptSource(spec(length=2, prompt_token_low=0, prompt_token_high=9))


def test_bodies_ask_for_exact_length() -> None:
    source = PromptSource(spec())
    first, *rest = [json.loads(body) for body in source.bodies("c1", 3)]
    assert len(rest) == 2
    assert len(first.pop("prompt")) == 20
    assert first == {
        "model": "m",
        "max_tokens": 5,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert source.path == "/v1/completions"


def test_chat_sends_words() -> None:
    source = PromptSource(spec(api="chat"))
    body = json.loads(next(source.bodies("c1", 1)))
    assert len(body["messages"][0]["content"].split()) == 20
    assert source.path == "/v1/chat/completions"
