"""The space of vLLM on a CPU: its knobs, what the engine refuses in its own words, and random candidates."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from autotune.domain.draws import draw
from autotune.domain.instance import instantiate
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import RolePlan, render
from autotune.domain.space import Settled, Severity
from autotune.domain.stack import StackVersions
from autotune.errors import InvalidCandidate
from search_spaces.catalog import SpaceCatalog

SPACE = SpaceCatalog().space("vllm-cpu")


def facts(**other: Any) -> dict[str, Any]:
    plain = {
        "model": "m", "devices": 1, "tensor_parallel": 1, "max_model_len": 1024, "model_facts": {},
        "concurrency": [1, 8], "max_concurrency": 8, "prompt_tokens": 115, "output_tokens": 64,
    }  # fmt: skip
    return {**plain, **other}


def settle(values: dict[str, KnobValue], **other: Any) -> Settled:
    return SPACE.settle(SPACE.complete(values), facts(**other))


def server(values: dict[str, KnobValue], **other: Any) -> RolePlan:
    return render(SPACE, settle(values, **other).candidate, facts(**other)).roles["server"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_num_seqs", (1, 2, 4, 8, 32, 128)),
        ("max_num_batched_tokens", (64, 128, 512, 2048)),
        ("block_size", (16, 32, 64, 128)),
        ("host_allocator", (None, "tcmalloc", "jemalloc")),
        ("ngram_draft_tokens", (None, 2, 4, 8)),
        ("stream_interval", (1, 4, 16)),
        ("enforce_eager", (None, True)),
        ("omp_threads_bind", ("auto", "0-1", "0|1")),
        ("kv_cache_space_gib", (1, 100)),
        ("kv_cache_dtype", ("auto", "fp8_e5m2")),
        ("dtype", ("bfloat16", "float16")),
    ],
)
def test_the_knobs_reach_what_was_measured(name: str, values: tuple[KnobValue, ...]) -> None:
    assert all(SPACE.by_name[name].contains(value) for value in values)


def test_it_launches_what_the_command_line_of_the_engine_wants() -> None:
    role = server(
        {
            "max_num_seqs": 32, "max_num_batched_tokens": 2048, "block_size": 128, "host_allocator": "tcmalloc",
            "ngram_draft_tokens": 8, "stream_interval": 4, "enforce_eager": True, "omp_threads_bind": "0-1",
            "kv_cache_space_gib": 1, "kv_cache_dtype": "fp8_e5m2", "prefix_caching": False,
        },
        tensor_parallel=2,
    )  # fmt: skip
    assert role.env == {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
    assert role.preload == ("tcmalloc",)
    assert "--enforce-eager" in role.argv
    assert "--no-enable-prefix-caching" in role.argv
    pairs = dict(zip(role.argv, role.argv[1:], strict=False))
    assert pairs["--tensor-parallel-size"] == "2"
    assert pairs["--max-model-len"] == "1024"
    assert pairs["--max-num-seqs"] == "32"
    assert json.loads(pairs["--speculative-config"]) == {
        "method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 4,
    }  # fmt: skip


def test_nothing_set_leaves_the_engine_alone() -> None:
    role = server({}, max_model_len=None)
    assert (role.env, role.argv, role.preload) == ({}, (), ())


CASES: list[tuple[str, dict[str, KnobValue], dict[str, Any]]] = [
    ("batch-holds-the-requests", {"max_num_batched_tokens": 64, "max_num_seqs": 128}, {}),
    ("whole-prompts-fit-a-step", {"chunked_prefill": False, "max_num_batched_tokens": 512}, {}),
    ("block-is-a-multiple-of-32", {"block_size": 16}, {}),
    ("ranks-divide-heads", {}, {"tensor_parallel": 3, "model_facts": {"attention_heads": 4}}),
    ("cache-fits-the-host", {"kv_cache_space_gib": 100}, {"model_facts": {"host_memory_gib": 23.5}}),
    ("binding-parts-the-ranks", {"omp_threads_bind": "0|1"}, {}),
    ("slots-hold-the-load", {"max_num_seqs": 2}, {}),
]


@pytest.mark.parametrize(("rule", "values", "told"), CASES)
def test_every_rule_has_its_say(rule: str, values: dict[str, KnobValue], told: dict[str, Any]) -> None:
    severity = next(r.severity for r in SPACE.rules if r.name == rule)
    if severity is Severity.REFUSE:
        with pytest.raises(InvalidCandidate) as caught:
            settle(values, **told)
        (problem,) = caught.value.problems
        assert problem.key == rule
        assert problem.mend
    else:
        assert [w.split(":")[0] for w in settle(values, **told).warnings] == [rule]
    assert settle({}).warnings == ()


def test_no_rule_is_without_a_case() -> None:
    assert {r.name for r in SPACE.rules} == {rule for rule, _, _ in CASES}


def test_few_tokens_alone_are_no_fault() -> None:
    assert settle({"max_num_batched_tokens": 64}).repairs == ()


@pytest.mark.parametrize("include", [(), ("tier3",)], ids=["default", "tier3"])
def test_random_candidates_settle_and_render(include: tuple[str, ...]) -> None:
    instance = instantiate(SPACE, SPACE.stack, include).space
    rng = Random(32)
    launchable = 0
    for _ in range(200):
        try:
            settled = instance.settle(draw(instance, facts(), rng), facts())
        except InvalidCandidate:
            continue
        launchable += 1
        assert instance.settle(settled.candidate.values, facts()).candidate == settled.candidate
        assert render(instance, settled.candidate, facts()).roles["server"]
    assert launchable > 100


def test_recipes_launch() -> None:
    instance = instantiate(SPACE, SPACE.stack).space
    assert [r.name for r in instance.recipes] == ["eager", "eager-ngram-8", "compiled-ngram-4"]
    for recipe in instance.recipes:
        assert settle(recipe.values).repairs == ()


def test_the_instance_leaves_out_what_is_not_searched() -> None:
    instance = instantiate(SPACE, StackVersions(engine="0.32.0"))
    out = {item.name: item.why for item in instance.left_out}
    assert set(out) == {"async_scheduling", "dtype", "reserved_cpus", "omp_num_threads", "log_requests"}
    assert out["omp_num_threads"] == "not searched: tier 4"


def test_a_variable_that_is_not_read_is_named() -> None:
    assert [d.key for d in SPACE.dead] == ["env VLLM_CPU_SGL_KERNEL"]


def test_what_was_written_from_memory_says_so() -> None:
    assumed = {k.name for k in SPACE.knobs if k.source == "assumed, not checked against the source"}
    assert assumed == {"async_scheduling", "prefix_caching", "reserved_cpus", "log_requests"}
