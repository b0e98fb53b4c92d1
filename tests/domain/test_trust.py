"""When a measurement may not be compared."""

from __future__ import annotations

import re
from typing import Any

import pytest

from autotune.domain.measurement import Measurement, RequestSample, Trust, summarise
from autotune.domain.trust import assess
from autotune.domain.workload import LoadLevel, Workload

GOOD: dict[str, Any] = {
    "t_send_s": 0.0,
    "t_last_s": 1.0,
    "ttft_ms": 20.0,
    "tpot_ms": 5.0,
    "e2e_ms": 1000.0,
    "prompt_tokens": 1000,
    "completion_tokens": 100,
    "finish_reason": "length",
    "events": 100,
}
FAILED: dict[str, Any] = {
    "t_send_s": 0.0,
    "t_last_s": 1.0,
    "error": "http_503",
    **dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms", "prompt_tokens", "completion_tokens", "finish_reason")),
}


def judged(count: int, bad: int, change: dict[str, Any]) -> Measurement:
    """`count` good requests, of which `bad` are changed."""
    level = LoadLevel(concurrency=4, requests=count)
    workload = Workload(prompt_tokens=1000, output_tokens=100, levels=(level,))
    made = [{**GOOD, **change} if number < bad else GOOD for number in range(count)]
    samples = [RequestSample(index=number, **values) for number, values in enumerate(made)]
    return assess(workload, {"c4": samples}, [summarise("c4", 4, samples)])


def test_a_good_measurement() -> None:
    found = judged(20, 0, {})
    assert (found.trust, found.trust_reasons) == (Trust.OK, ())
    assert list(found.levels) == ["c4"]


@pytest.mark.parametrize(
    ("change", "bad", "trust", "reason"),
    [
        (FAILED, 20, Trust.INVALID, "no request ended as planned"),
        (FAILED, 1, Trust.INVALID, r"1 of 20 requests failed \(1 http_503\)"),
        ({"completion_tokens": None, "tpot_ms": None}, 20, Trust.INVALID, "no usage"),
        ({"completion_tokens": 99}, 1, Trust.INVALID, "1 of 20 answers differ from the asked 100"),
        ({"completion_tokens": 101}, 1, Trust.INVALID, "1 of 20 answers differ"),
        ({"tpot_ms": None}, 11, Trust.INVALID, "whole answers arrive at once"),
        ({"tpot_ms": None}, 6, Trust.INVALID, "6 of 20 answers have no TPOT"),
        ({"ttft_ms": None, "tpot_ms": None, "e2e_ms": None}, 20, Trust.INVALID, "no text"),
        ({"coalesced": True}, 3, Trust.WARN, "3 of 20 first tokens"),
        ({"stamp": "user", "client_lag_ms": 8.0}, 20, Trust.WARN, "from user space and up to 8.0 ms late"),
        ({"prompt_tokens": 1020}, 20, Trust.WARN, "server counts 1020 tokens a prompt, 1000 were asked"),
    ],
)
def test_each_rule(change: dict[str, Any], bad: int, trust: Trust, reason: str) -> None:
    found = judged(20, bad, change)
    assert found.trust is trust
    (only,) = found.trust_reasons
    assert re.search(reason, only), only
    assert only.startswith("c4: ")


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ({"coalesced": True}, 2),
        ({"stamp": "user", "client_lag_ms": 1.0}, 20),
        ({"client_lag_ms": 500.0}, 20),
        ({"prompt_tokens": 1001}, 20),
        ({"prompt_tokens": None}, 20),
        ({"tpot_ms": None}, 5),
    ],
    ids=str,
)
def test_below_each_bound(change: dict[str, Any], bad: int) -> None:
    assert judged(20, bad, change).trust is Trust.OK


def test_one_failure_in_many_warns() -> None:
    found = judged(100, 1, FAILED)
    assert found.trust is Trust.WARN
    assert found.trust_reasons == ("c4: 1 of 100 requests failed (1 http_503)",)


def test_every_reason_is_told_and_the_worst_counts() -> None:
    found = judged(20, 20, {"completion_tokens": 50, "coalesced": True, "prompt_tokens": 900})
    assert found.trust is Trust.INVALID
    assert len(found.trust_reasons) == 3


def test_each_level_is_judged() -> None:
    levels = (LoadLevel(concurrency=1, requests=1), LoadLevel(concurrency=4, requests=1))
    workload = Workload(prompt_tokens=1000, output_tokens=100, levels=levels)
    samples = {"c1": [RequestSample(index=0, **GOOD)], "c4": [RequestSample(index=0, **FAILED)]}
    found = assess(workload, samples, [summarise("c1", 1, samples["c1"]), summarise("c4", 4, samples["c4"])])
    assert found.trust is Trust.INVALID
    assert found.trust_reasons == ("c4: no request ended as planned",)


def open_loop(lag_ms: float, last_s: float, cap: int = 4) -> Measurement:
    """Twenty requests that are due at once and so many ms later."""
    level = LoadLevel(concurrency=cap, requests=20, rate_per_s=10)
    workload = Workload(prompt_tokens=1000, output_tokens=100, levels=(level,))
    values = {**GOOD, "t_last_s": last_s, "schedule_lag_ms": lag_ms}
    samples = [RequestSample(index=n, **{**values, "t_send_s": n * 0.01}) for n in range(20)]
    return assess(workload, {level.name: samples}, [summarise(level.name, cap, samples, 10.0)])


def test_a_cap_that_delays_requests_is_told() -> None:
    found = open_loop(500.0, 4.0)
    assert found.trust is Trust.WARN
    assert found.trust_reasons == (
        "c4r10: cap-bound, requests were sent up to 500 ms behind their schedule: 4 in flight, not 10/s, set the pace "
        "(50% reached)",
    )


def test_a_host_that_delays_requests_is_told() -> None:
    found = open_loop(500.0, 4.0, cap=30)
    assert found.trust is Trust.WARN
    assert "too busy to keep it" in found.trust_reasons[0]


def test_a_schedule_that_was_kept_raises_no_doubts() -> None:
    assert open_loop(1.0, 4.0).trust is Trust.OK
