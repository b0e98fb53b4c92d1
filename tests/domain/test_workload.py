"""The offered load: names of levels, and what makes no sense."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.domain.objective import Limit
from autotune.domain.workload import LEVEL_NAME, Arrivals, LoadLevel, Workload


def level(**changes: Any) -> LoadLevel:
    return LoadLevel.model_validate({"concurrency": 8, "requests": 4, **changes})


def workload(**changes: Any) -> Workload:
    return Workload.model_validate({"prompt_tokens": 64, "output_tokens": 8, "levels": [level()], **changes})


@pytest.mark.parametrize(
    ("concurrency", "rate", "name"),
    [
        (8, None, "c8"),
        (48, 2, "c48r2"),
        (48, 2.0, "c48r2"),
        (8, 0.5, "c8r0.5"),
        (1, 0.001, "c1r0.001"),
        (1024, 10_000, "c1024r10000"),
        (8, 1.25, "c8r1.25"),
    ],
)
def test_the_name_of_a_level(concurrency: int, rate: float | None, name: str) -> None:
    assert level(concurrency=concurrency, rate_per_s=rate).name == name


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 1024), st.none() | st.floats(0.001, 10_000))
def test_every_name_can_stand_in_a_limit_and_tells_levels_apart(concurrency: int, rate: float | None) -> None:
    name = level(concurrency=concurrency, rate_per_s=rate).name
    assert re.fullmatch(LEVEL_NAME, name)
    assert Limit.parse(f"tpot_ms <= 12 at {name}").level == name
    assert rate is None or float(name.partition("r")[2]) == rate


def test_a_closed_loop_looks_as_it_always_did() -> None:
    assert level().model_dump(mode="json") == {"concurrency": 8, "requests": 4}
    assert level().arrivals is None


def test_an_open_loop_is_poisson_unless_said_otherwise() -> None:
    assert level(rate_per_s=2).arrivals is Arrivals.POISSON
    assert level(rate_per_s=2, arrivals="constant").arrivals is Arrivals.CONSTANT
    for made in (level(), level(rate_per_s=2), level(rate_per_s=0.5, arrivals="constant")):
        assert LoadLevel.model_validate_json(made.model_dump_json()) == made


def test_arrivals_without_a_rate_say_what_to_do() -> None:
    with pytest.raises(ValidationError, match=r"arrivals: .* no rate_per_s; add one or remove it"):
        level(arrivals="constant")


@pytest.mark.parametrize("rate", [0, -1, 0.0001, 20_000, float("nan"), "fast"])
def test_rates_that_make_no_sense(rate: object) -> None:
    with pytest.raises(ValidationError, match="rate_per_s"):
        level(rate_per_s=rate)


def test_a_concurrency_may_occur_at_several_rates() -> None:
    made = workload(levels=[level(), level(rate_per_s=2), level(rate_per_s=4)])
    assert [one.name for one in made.levels] == ["c8", "c8r2", "c8r4"]
    assert made.concurrencies == (8,)
    with pytest.raises(ValidationError, match="got c8r2, c8r2; remove a level, or give it another"):
        workload(levels=[level(rate_per_s=2), level(rate_per_s=2.0, arrivals="constant")])


def test_the_shared_prefix_leaves_tokens_of_its_own_to_each_request() -> None:
    assert workload().own_tokens == 64
    assert workload(shared_prefix_tokens=63).own_tokens == 1
    with pytest.raises(ValidationError, match="shared_prefix_tokens: 64 is not below prompt_tokens, 64; lower it"):
        workload(shared_prefix_tokens=64)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        workload(shared_prefix_tokens=-1)
