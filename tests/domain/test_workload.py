"""The offered load: names of levels, and what makes no sense."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from autotune.domain.objective import Limit
from autotune.domain.presets import PRESETS
from autotune.domain.workload import LEVEL_NAME, MAX_REQUESTS, Arrivals, CachePolicy, LoadLevel, Workload


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


def test_ramps_and_traces_have_names_of_their_own() -> None:
    made = [level(), level(rate_per_s=1), level(rate_per_s=1, rate_to_per_s=4.5), level(trace_file="/data/trace.jsonl")]
    names = [one.name for one in made]
    assert names == ["c8", "c8r1", "c8r1to4.5", "c8t"]
    for name in names:
        assert Limit.parse(f"tpot_ms <= 12 at {name}").level == name
    assert [one.mean_rate_per_s for one in made] == [None, 1, 2.75, None]
    for one in made:
        assert LoadLevel.model_validate_json(one.model_dump_json()) == one


def test_a_duration_stands_in_place_of_a_number() -> None:
    timed = LoadLevel.model_validate({"concurrency": 8, "duration_s": 60})
    assert (timed.requests, timed.extent) == (MAX_REQUESTS, "for 60 s")
    assert LoadLevel.model_validate_json(timed.model_dump_json()) == timed
    assert level().extent == "x 4"
    assert LoadLevel.model_validate({"concurrency": 8, "trace_file": "/t"}).extent == "x its trace"
    with pytest.raises(ValidationError, match="requests"):
        LoadLevel.model_validate({"concurrency": 8})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"burstiness": 2}, "burstiness: is that of an open loop, and there is no rate_per_s"),
        ({"rate_to_per_s": 2}, "rate_to_per_s: is that of an open loop, and there is no rate_per_s"),
        ({"rate_per_s": 1, "arrivals": "poisson", "burstiness": 2}, "burstiness: is that of gamma arrivals, not of"),
        ({"rate_per_s": 1, "arrivals": "gamma"}, "burstiness: gamma arrivals need one"),
        ({"rate_per_s": 1, "trace_file": "/t"}, "trace_file: says when requests are due, and so does rate_per_s"),
        ({"rate_per_s": 1, "stagger": True}, "stagger: is that of a closed loop"),
        ({"trace_file": "/t", "stagger": True}, "stagger: is that of a closed loop"),
        ({"rate_per_s": 1, "precision": 0.01}, "precision: is that of a closed loop"),
        ({"trace_file": "t"}, "trace_file"),
        ({"duration_s": 0}, "duration_s"),
        ({"cache": "warm"}, "cache"),
    ],
    ids=str,
)
def test_levels_that_contradict_themselves(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        level(**changes)


def test_burstiness_means_gamma() -> None:
    assert level(rate_per_s=2, burstiness=0.5).arrivals is Arrivals.GAMMA


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prefix_groups": 2}, "prefix_groups: there is no shared prefix"),
        ({"requests_file": "/r", "shared_prefix_tokens": 8}, "requests_file: its requests are sent as they are"),
        ({"requests_file": "r"}, "requests_file"),
        ({"length_control": "hope"}, "length_control"),
    ],
    ids=str,
)
def test_workloads_that_contradict_themselves(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        workload(**changes)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_workloads(name: str) -> None:
    made = Workload.of_preset(name)
    assert Workload.model_validate_json(made.model_dump_json()) == made


def test_presets_of_reports_are_their_protocols() -> None:
    report_a, gsp = Workload.of_preset("report-a-1k512"), Workload.of_preset("gsp-128k1k")
    assert [(one.concurrency, one.requests) for one in report_a.levels] == [(1, 40), (4, 80), (8, 80)]
    assert (report_a.prompt_tokens, report_a.output_tokens, report_a.warmup_requests) == (1024, 512, 20)
    assert {one.cache for one in report_a.levels} == {CachePolicy.FOREIGN}
    (open_loop,) = gsp.levels
    assert (open_loop.name, open_loop.requests, open_loop.arrivals) == ("c48r2", 192, Arrivals.POISSON)
    assert (gsp.shared_prefix_tokens, gsp.own_tokens, gsp.output_tokens) == (117_965, 9_216, 1024)
    assert not any(one.stagger for one in (*report_a.levels, *gsp.levels))


def test_what_stands_beside_a_preset_takes_its_place() -> None:
    made = Workload.model_validate(
        {"preset": "smoke", "output_tokens": 8, "levels": [{"concurrency": 2, "requests": 3}]}
    )
    assert (made.prompt_tokens, made.output_tokens, [one.name for one in made.levels]) == (128, 8, ["c2"])
    with pytest.raises(ValidationError, match="preset: 'smokey' is unknown; allowed: report-a-1k512, gsp-128k1k"):
        Workload.model_validate({"preset": "smokey"})


def test_a_plain_workload_looks_as_it_always_did() -> None:
    assert workload().model_dump(mode="json") == {
        "prompt_tokens": 64,
        "shared_prefix_tokens": 0,
        "output_tokens": 8,
        "levels": [{"concurrency": 8, "requests": 4}],
        "warmup_requests": 2,
        "request_timeout_s": 120.0,
    }
