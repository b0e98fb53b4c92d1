"""What the rules of the built-in spaces make of random draws."""

from __future__ import annotations

import random
from typing import Any

import pytest

from autotune.domain.deployment import Deployment, facts
from autotune.domain.draws import draw
from autotune.domain.instance import instantiate
from autotune.domain.launch_plan import render
from autotune.domain.space import Severity
from autotune.domain.stack import StackVersions
from autotune.domain.workload import LoadLevel, Workload
from autotune.errors import InvalidCandidate
from search_spaces.catalog import SpaceCatalog
from tests.bench.space_rules import STACK, measure

CATALOG = SpaceCatalog()


def known(ranks: int) -> dict[str, Any]:
    levels = tuple(LoadLevel(concurrency=c, requests=1) for c in (1, 4, 8))
    return facts(
        Deployment(template="t", model="m", devices=ranks, tensor_parallel=ranks, max_model_len=4096),
        Workload(prompt_tokens=1024, output_tokens=512, levels=levels),
    )


@pytest.mark.parametrize("name", CATALOG.names())
def test_what_comes_out_of_the_rules_keeps_them_all(name: str) -> None:
    """Settling twice changes nothing, renders, and leaves no rule broken that refuses or repairs."""
    space = instantiate(CATALOG.space(name), StackVersions()).space
    about = known(2)
    rng = random.Random(17)
    settled_draws = 0
    for _ in range(60):
        try:
            settled = space.settle(draw(space, about, rng), about)
        except InvalidCandidate:
            continue
        settled_draws += 1
        again = space.settle(settled.candidate.values, about)
        assert again.candidate == settled.candidate
        assert again.repairs == ()
        render(space, settled.candidate, about)
    assert settled_draws >= 5
    assert {r.severity for r in space.rules} <= set(Severity)


def test_rules_spare_three_quarters_of_the_crashes_and_refuse_nothing_that_runs() -> None:
    """A short run of `make bench-space`."""
    space = instantiate(CATALOG.space("vllm-ascend-910c"), STACK).space
    result = measure(space, 1_500, seed=5)
    assert result["refused_though_it_runs"] == {}
    assert result["crash_share_with"] <= 0.25 * result["crash_share_without"]
