"""Whether two launches had the same work to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.conditions import Comparability, Conditions, comparability
from autotune.domain.host_load import HostLoad
from autotune.domain.measurement import Measurement, Trust
from tests import builders

PROMPT = 127_181.0
TOKENS = st.floats(0, 200_000)


def measured(uncached: float | None, prompt: float | None = PROMPT, level: str = "c48r2") -> Measurement:
    figures = builders.level_measurement(level, prompt_tokens_mean=prompt, uncached_tokens_mean=uncached)
    return Measurement(levels={level: figures})


@pytest.mark.parametrize("uncached", [11392.0, 11393.0, 11392 - 227, 11392 + 227])
def test_alike(uncached: float) -> None:
    assert Conditions.of(measured(11392.0)).differences(measured(uncached)) == ()


def test_more_than_two_percent_is_another_load() -> None:
    assert Conditions.of(measured(11392.0)).differences(measured(12345.0)) == (
        "12345 uncached tokens a request at c48r2, the baseline had 11392",
    )
    assert Conditions.of(measured(11392.0)).differences(measured(11392.0 * 0.97))


@pytest.mark.parametrize(("uncached", "alike"), [(64.0 + 127, True), (64.0 + 128, False), (0.0, True)])
def test_less_than_a_block_is_rounding(uncached: float, alike: bool) -> None:
    """A hundred tokens more are a multiple of a short rest, and still nothing but another block size."""
    assert (Conditions.of(measured(64.0)).differences(measured(uncached)) == ()) is alike


def test_a_cache_that_was_switched_off_does_not_pass_for_one_that_is_not_reported() -> None:
    (difference,) = Conditions.of(measured(11392.0)).differences(measured(None))
    assert difference == "127181 uncached tokens a request at c48r2, the baseline had 11392"
    assert Conditions.of(measured(None)).differences(measured(11392.0))


def test_a_server_that_never_reports_changes_nothing() -> None:
    assert Conditions.of(measured(None)).differences(measured(None)) == ()
    assert Conditions.of(measured(None)).differences(measured(PROMPT)) == ()


def test_what_is_unknown_is_not_compared() -> None:
    assert Conditions.of(measured(None, prompt=None)).uncached_tokens == {}
    assert Conditions.of(measured(None, prompt=None)).differences(measured(5.0)) == ()
    assert Conditions.of(measured(5000.0)).differences(measured(None, prompt=None)) == ()
    assert Conditions.of(measured(5000.0)).differences(measured(1.0, level="c8")) == ()


def test_each_level_has_its_own_reference() -> None:
    both = builders.measurement(levels=("c1", "c8"), uncached_tokens=1000.0)
    other = builders.level_measurement("c8", uncached_tokens_mean=2000.0)
    changed = both.model_copy(update={"levels": {**both.levels, "c8": other}})
    assert Conditions.of(both).differences(changed) == ("2000 uncached tokens a request at c8, the baseline had 1000",)


def test_one_odd_launch_does_not_move_the_median() -> None:
    found = Conditions.median([measured(11392.0), measured(90_000.0), measured(11400.0)])
    assert found.uncached_tokens == {"c48r2": 11400.0}
    assert Conditions.median([]).uncached_tokens == {}


@settings(max_examples=100, deadline=None)
@given(TOKENS)
def test_a_launch_is_comparable_with_itself(tokens: float) -> None:
    assert Conditions.of(measured(tokens)).differences(measured(tokens)) == ()


@settings(max_examples=100, deadline=None)
@given(TOKENS, TOKENS, st.floats(0, 1))
def test_what_lies_nearer_to_the_reference_is_no_less_comparable(reference: float, far: float, share: float) -> None:
    near = reference + share * (far - reference)
    conditions = Conditions.of(measured(reference))
    if conditions.differences(measured(near)):
        assert conditions.differences(measured(far))


# --- two measurements side by side ------------------------------------------------------------


def of_level(level: str = "c8", host: HostLoad | None = None, **changes: Any) -> Measurement:
    return Measurement(levels={level: builders.level_measurement(level, **changes)}, host=host)


def test_the_same_load_may_be_compared() -> None:
    assert comparability(of_level(), of_level(tpot_ms=99.0, output_tok_s=1.0)) == Comparability()


@pytest.mark.parametrize(
    ("mine", "theirs", "reason"),
    [
        (of_level("c8"), of_level("c4"), "its load levels are c8, the other had c4"),
        (
            of_level(prompt_tokens_mean=1030.0),
            of_level(prompt_tokens_mean=1024.0),
            "1030 tokens a prompt at c8, the other had 1024",
        ),
        (
            of_level(output_tokens_mean=500.0),
            of_level(output_tokens_mean=512.0),
            "500 tokens an answer at c8, the other had 512",
        ),
        (of_level(rate_per_s=2.0), of_level(rate_per_s=2.1), "2 requests/s offered at c8, the other had 2.1"),
        (
            of_level(uncached_tokens_mean=12345.0),
            of_level(uncached_tokens_mean=11392.0),
            "12345 uncached tokens a request at c8, the other had 11392",
        ),
    ],
)
def test_another_load_is_refused_with_the_reason(mine: Measurement, theirs: Measurement, reason: str) -> None:
    assert comparability(mine, theirs).refused == (reason,)


def test_lengths_that_differ_by_a_token_are_alike() -> None:
    assert comparability(of_level(prompt_tokens_mean=65.0), of_level(prompt_tokens_mean=64.0)).refused == ()
    assert comparability(of_level(output_tokens_mean=508.0), of_level(output_tokens_mean=512.0)).refused == ()


def test_what_is_not_trusted_is_not_compared() -> None:
    doubtful = of_level().model_copy(update={"trust": Trust.INVALID, "trust_reasons": ("c8: cut short",)})
    assert comparability(doubtful, of_level()).refused == ("it is not trusted: c8: cut short",)
    assert comparability(of_level(), doubtful, "the baseline").refused == (
        "the baseline is not trusted: c8: cut short",
    )


def test_what_only_informs_is_shown() -> None:
    mine = of_level(in_flight_mean=7.0, stamp="user", host=HostLoad(load_average=9.0, cpu_ms_per_token=0.2))
    theirs = of_level(in_flight_mean=8.0, host=HostLoad(load_average=1.0, cpu_ms_per_token=0.05))
    told = comparability(mine, theirs)
    assert told.refused == ()
    assert told.notes == (
        "arrival times at c8 are from the user, the other had them from the kernel",
        "7.0 requests in flight at c8, the other had 8.0",
        "the host's load was 9.0, the other had 1.0",
        "the load process took 0.200 ms of a core per token, the other had 0.050",
    )
    assert comparability(of_level(host=HostLoad()), theirs).notes == ()
