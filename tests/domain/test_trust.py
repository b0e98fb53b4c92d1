"""When a measurement may not be compared."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.domain.host_load import HostLoad
from autotune.domain.measurement import Finding, Measurement, RequestSample, Trust, summarise
from autotune.domain.server_truth import ServerTruth
from autotune.domain.trust import assess
from autotune.domain.validity import RULES
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
        ({"stamp": "user", "client_lag_ms": 8.0}, 20, Trust.INVALID, "from user space and up to 8.0 ms late"),
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
    levels = (LoadLevel(concurrency=1, requests=16), LoadLevel(concurrency=4, requests=1))
    workload = Workload(prompt_tokens=1000, output_tokens=100, levels=levels)
    samples = {"c1": [RequestSample(index=n, **GOOD) for n in range(16)], "c4": [RequestSample(index=0, **FAILED)]}
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


@pytest.mark.parametrize(("lag_ms", "trust"), [(90.0, Trust.WARN), (500.0, Trust.INVALID)])
def test_a_host_that_delays_requests_is_told(lag_ms: float, trust: Trust) -> None:
    """Later than the time between two requests, others were offered than asked for."""
    found = open_loop(lag_ms, 4.0, cap=30)
    assert found.trust is trust
    assert "too busy to keep it" in found.trust_reasons[0]


def test_a_schedule_that_was_kept_raises_no_doubts() -> None:
    assert open_loop(1.0, 4.0).trust is Trust.OK


# --- rules that look at more than the answers -------------------------------------------------


def stream(
    count: int, concurrency: int = 1, pause_s: float = 0.0, tpot: Callable[[int], float] = lambda n: 5.0, **more: Any
) -> list[RequestSample]:
    """Streams of one second a request, with a pause before each next one."""
    made = []
    for index in range(count):
        send_s = index // concurrency * (1.0 + pause_s)
        values = {**GOOD, "t_send_s": send_s, "t_last_s": send_s + 1.0, "tpot_ms": tpot(index), **more}
        made.append(RequestSample(index=index, **values))
    return made


def found(
    samples: list[RequestSample],
    concurrency: int = 1,
    host: HostLoad | None = None,
    server: ServerTruth | None = None,
    rate: float | None = None,
    **workload: Any,
) -> dict[str, Finding]:
    """The findings by rule, but for the remark on few batches."""
    level = LoadLevel(concurrency=concurrency, requests=len(samples), rate_per_s=rate)
    asked = Workload(**{"prompt_tokens": 1000, "output_tokens": 100, "levels": (level,), **workload})
    figures = summarise(level.name, concurrency, samples, rate)
    if server is not None:
        figures = figures.model_copy(update={"server": {"server": server}})
    measured = assess(asked, {level.name: samples}, [figures], host)
    assert all(RULES[f.rule].trust is f.trust for f in measured.findings)
    return {f.rule: f for f in measured.findings if f.rule != "few_batches"}


def test_streams_that_are_always_busy_raise_no_doubts() -> None:
    assert found(stream(40)) == {}
    assert found(stream(80, 4), 4) == {}


@pytest.mark.parametrize(
    ("pause_s", "rule"), [(0.001, None), (0.015, "slot_idle"), (0.08, "slot_idle"), (0.92, "slots_idle")]
)
def test_pauses_between_requests(pause_s: float, rule: str | None) -> None:
    """A published client left 0.92 s between answers of 0.74 s: not the load that it claims."""
    assert [*found(stream(40, pause_s=pause_s))] == ([rule] if rule else [])


@pytest.mark.parametrize(("count", "rule"), [(15, True), (16, False)])
def test_few_requests_are_a_reservation_and_no_refusal(count: int, rule: bool) -> None:
    told = found(stream(count))
    assert ("few_requests" in told) is rule
    assert all(f.trust is Trust.WARN for f in told.values())


def test_few_batches_are_a_remark() -> None:
    level = LoadLevel(concurrency=8, requests=16)
    workload = Workload(prompt_tokens=1000, output_tokens=100, levels=(level,))
    samples = stream(16, 8)
    measured = assess(workload, {"c8": samples}, [summarise("c8", 8, samples)])
    assert measured.trust is Trust.OK
    assert measured.trust_reasons == ()
    assert [f.rule for f in measured.findings] == ["few_batches"]


def test_a_pace_that_drifts() -> None:
    told = found(stream(40, tpot=lambda n: 5.0 * (1 + 0.004 * n) + 0.001 * (n % 3)))
    assert [*told] == ["not_steady"]
    assert told["not_steady"].value == pytest.approx(0.07, abs=0.03)
    assert found(stream(40, tpot=lambda n: 5.0 + 0.2 * (n % 2))) == {}


def test_prompts_that_share_nothing_and_are_found_in_the_cache() -> None:
    assert [*found(stream(20, cached_tokens=930))] == ["cache_hits"]
    assert found(stream(20, cached_tokens=9)) == {}
    assert found(stream(20, cached_tokens=930), shared_prefix_tokens=900) == {}


def test_first_tokens_of_two_kinds() -> None:
    samples = [s.model_copy(update={"ttft_ms": 100.0 if s.index % 3 == 0 else 20.0}) for s in stream(20)]
    assert [*found(samples)] == ["ttft_bimodal"]
    assert found([s.model_copy(update={"ttft_ms": 20.0 + s.index}) for s in stream(20)]) == {}


def test_anchors_are_asked_of_the_decode_pace_where_there_is_one() -> None:
    samples = [s.model_copy(update={"decode_tpot_ms": 5.0 if s.index < 14 else None}) for s in stream(20)]
    assert [*found(samples)] == ["no_anchor"]
    assert found([s.model_copy(update={"decode_tpot_ms": 5.0 if s.index < 15 else None}) for s in stream(20)]) == {}


@pytest.mark.parametrize(
    ("host", "rule"),
    [
        (HostLoad(cpu_share=0.71), "client_cpu"),
        (HostLoad(switches_per_s=201), "client_switches"),
        (HostLoad(steal_share=0.03), "host_steal"),
        (HostLoad(clock_step_us=-700, window_s=1.0), "clock"),
        (HostLoad(clock_step_us=700, window_s=10.0), None),  # a clock that is steered
        (HostLoad(clock_step_us=49, window_s=0.001), None),
        (HostLoad(cpu_share=0.69, switches_per_s=199, steal_share=0.01, load_average=50), None),
        (HostLoad(), None),
    ],
)
def test_the_host_of_the_load_generator(host: HostLoad, rule: str | None) -> None:
    assert [*found(stream(20), host=host)] == ([rule] if rule else [])


def test_a_finding_of_the_host_names_no_level() -> None:
    workload = Workload(prompt_tokens=1000, output_tokens=100, levels=(LoadLevel(concurrency=1, requests=20),))
    samples = stream(20)
    measured = assess(workload, {"c1": samples}, [summarise("c1", 1, samples)], HostLoad(cpu_share=0.9))
    assert measured.trust_reasons == ("the load process used 90% of its core",)
    assert measured.host == HostLoad(cpu_share=0.9)


@pytest.mark.parametrize(
    ("truth", "rules"),
    [
        ({"finished": 20, "generation_tokens": 2000, "tpot_mean_ms": 4.99}, []),
        ({"finished": 21}, ["server_mismatch"]),
        ({"generation_tokens": 2001}, ["server_mismatch"]),
        ({"tpot_mean_ms": 4.5}, ["server_finding"]),
        ({"preemptions": 2}, ["preempted"]),
    ],
)
def test_what_the_server_says(truth: dict[str, Any], rules: list[str]) -> None:
    assert [*found(stream(20), server=ServerTruth(engine="vllm", **truth))] == rules


def test_labels_of_an_open_loop_cost_no_trust() -> None:
    """What was offered was served: 2/s x 100 tokens, and the cap of 8 played no part."""
    samples = [
        s.model_copy(update={"t_send_s": s.index * 0.5, "t_last_s": s.index * 0.5 + 1, "schedule_lag_ms": 0.1})
        for s in stream(80)
    ]
    told = found(samples, concurrency=8, rate=2.0)
    assert {*told} == {"supply_limited", "cap_never_binding"}
    assert all(f.trust is Trust.OK for f in told.values())


def test_the_length_of_a_users_own_requests_is_theirs() -> None:
    assert found(stream(20, completion_tokens=37, prompt_tokens=9), requests_file="/data/requests.jsonl") == {}


def test_every_rule_has_its_sentence_source_and_unit() -> None:
    for name, rule in RULES.items():
        assert rule.id == name
        assert rule.sentence
        assert rule.source
        assert (rule.threshold is None) == (rule.unit == ""), name


def test_every_rule_is_explained() -> None:
    text = (Path(__file__).parents[2] / "docs" / "measurement.md").read_text()
    assert [name for name in RULES if f"`{name}`" not in text] == []


def test_a_measurement_that_was_stored_before_there_were_findings_can_be_read() -> None:
    stored = judged(20, 0, {}).model_dump(mode="json")
    del stored["findings"], stored["host"]
    assert Measurement.model_validate(stored).findings == ()
