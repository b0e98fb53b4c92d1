"""Rendered launches read back: the same candidate, from the plan and from a script."""

from __future__ import annotations

import gc
import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.documents.bash_launches import read_script
from autotune.documents.launch_script import read_launches
from autotune.domain.candidate import Candidate
from autotune.domain.deployment import Deployment, facts
from autotune.domain.draws import draw
from autotune.domain.instance import instantiate
from autotune.domain.knobs import (
    KnobValue,
)
from autotune.domain.launch_parse import parse
from autotune.domain.launch_plan import LaunchPlan, RolePlan, render
from autotune.domain.space import (
    SearchSpace,
)
from autotune.errors import InvalidCandidate
from tests.domain.every_landing import CATALOG, FACTS, LOAD, MODEL_FACTS, SIZES, SPACE

# --- there and back -------------------------------------------------------------------------


def random_values() -> st.SearchStrategy[dict[str, KnobValue]]:
    digit = st.integers(0, 8)
    sizes = st.sets(st.sampled_from(SIZES.items), min_size=1).map(lambda s: tuple(sorted(s, key=str)))
    ordered = sizes.map(lambda chosen: tuple(item for item in SIZES.items if item in chosen))
    share = st.floats(0, 1, allow_nan=False) | st.integers(0, 1)
    return st.fixed_dictionaries(
        {"one_side": st.booleans()},
        optional={
            **dict.fromkeys(["env", "deep", "constant", "late", "rare"], digit),
            **dict.fromkeys(["on", "part_a", "pair", "truth"], st.booleans()),
            **dict.fromkeys(["sizes", "list"], ordered),
            **dict.fromkeys(["part_b", "flag"], share),
            "word": st.sampled_from(["a b", "it's", "true"]),
            "lib": st.sampled_from(["jemalloc", "tcmalloc"]),
            "yes": st.just(True),
            "stack": st.sampled_from(["old", "new"]),
            "tensor_parallel": st.sampled_from([1, 4]),
        },
    )


@given(raw=random_values())
@settings(max_examples=200, deadline=None)
def test_what_is_rendered_parses_to_the_same_candidate(raw: dict[str, KnobValue]) -> None:
    instance = instantiate(SPACE, SPACE.stack, ("tier3",)).space
    candidate = instance.settle(raw, FACTS).candidate
    parsed = parse(SPACE, render(instance, candidate, FACTS).roles, facts=FACTS)
    assert Candidate(values=parsed.candidate) == candidate
    assert (parsed.unknown, parsed.unread, parsed.renamed) == ((), (), ())


@given(raw=random_values())
@settings(max_examples=100, deadline=None)
def test_so_does_a_script_that_launches_it(raw: dict[str, KnobValue]) -> None:
    instance = instantiate(SPACE, SPACE.stack, ("tier3",)).space
    candidate = instance.settle({**raw, "constant": None, "stack": None}, FACTS).candidate
    script = as_bash(render(instance, candidate, FACTS))
    parsed = parse(SPACE, read_launches(script, "run.sh").roles, facts=FACTS)
    assert Candidate(values=parsed.candidate) == candidate
    assert (parsed.unknown, parsed.unread) == ((), ())


@pytest.mark.parametrize("name", CATALOG.names())
def test_candidates_of_every_space_come_back(name: str) -> None:
    space = CATALOG.space(name)
    instance = instantiate(space, space.stack, ("tier3",)).space
    deployment = Deployment(
        template="t", model="m", devices=16, tensor_parallel=8, max_model_len=8192, model_facts=MODEL_FACTS
    )
    known = facts(deployment, LOAD)
    rng = Random(7)
    returned = 0
    for _ in range(60):
        try:
            candidate = instance.settle(draw(instance, known, rng, unset=0.7), known).candidate
        except InvalidCandidate:
            continue
        plan = render(instance, candidate, known)
        in_script = all(not (role.constants or role.stack) for role in plan.roles.values())
        roles = read_launches(as_bash(plan), "run.sh").roles if in_script else plan.roles
        parsed = parse(space, roles, facts=known)
        assert (parsed.unknown, parsed.unread, parsed.renamed) == ((), (), ())
        assert_alike(instance, candidate, Candidate(values=parsed.candidate), known)
        returned += 1
    assert returned >= 5


def assert_alike(space: SearchSpace, one: Candidate, other: Candidate, known: Mapping[str, Any]) -> None:
    """The same, but for a knob that says what the space derives without it: that one is unset."""
    places = {(d.role, json.dumps(d.lands.model_dump())) for d in space.derived}
    for name in one.difference(other):
        knob = space.by_name[name]
        assert (knob.role, json.dumps(knob.lands.model_dump())) in places
        assert name not in other.values
    assert _sorted(render(space, one, known)) == _sorted(render(space, other, known))


def _sorted(plan: LaunchPlan) -> Any:
    return {name: (role.env, sorted(role.argv), sorted(role.preload)) for name, role in plan.roles.items()}


def as_bash(plan: LaunchPlan) -> str:
    """A script as people write them: exports, then one command a role."""
    lines = ["#!/bin/bash", "# starts everything"]
    for name, role in plan.roles.items():
        mode = ["--disaggregation-mode", name] if name in ("prefill", "decode") else []
        module = "sglang_router.launch_router" if name == "router" else "sglang.launch_server"
        env = dict(role.env)
        if role.preload:
            env["LD_PRELOAD"] = ":".join(f"/usr/lib/lib{lib}.so.2" for lib in role.preload) + ":$LD_PRELOAD"
        words = ["python3", "-m", module, "--model-path", "/m", "--host", "::", *mode, *role.argv]
        lines += ["(", *(f"export {key}={shlex.quote(text)}" for key, text in env.items())]
        lines += [" \\\n  ".join(map(shlex.quote, words)) + " > log 2>&1 &", ")"]
    return "\n".join(lines) + "\n"


@given(
    text=st.text(alphabet="ab1-=$(){}[]'\"\\`<>|&;# \n", max_size=60), words=st.lists(st.text(max_size=12), max_size=6)
)
@settings(max_examples=150, deadline=None)
def test_no_text_whatever_breaks_the_parser(text: str, words: list[str]) -> None:
    read_script(text)
    launches = read_script(f"vllm serve /m --flag {text}")
    parse(SPACE, launches.roles)
    odd = {"--conf": "[" * 5000, "--deep": "Infinity", "--tp": "9" * 5000, "--flag": "1e999"}
    argv = (*words, *(part for pair in odd.items() for part in pair), "--conf.x", "NaN", "--conf.y", "1e999")
    with no_garbage_collection():
        parse(SPACE, {"server": RolePlan(argv=argv, env={"ENV": "".join(words), "CONF": text})})


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Where brackets are read down to the recursion limit, the collector can't call Hypothesis' own function any more.

    Python then tells of an exception that it ignored, and pytest takes that for an error of the test.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
