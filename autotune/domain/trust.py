"""Whether a measurement may be compared at all: the validity rules, applied to what a launch showed.

Each rule stands for a published way to get a wrong winner: starved clients whose TPOT came out fifty times
too good, cut-off outputs, buffered streams, prompts of another length than asked. The rules themselves, their
thresholds and their sources are in `validity`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autotune.domain.contradictions import contradictions
from autotune.domain.host_load import HostLoad
from autotune.domain.measurement import Finding, LevelMeasurement, Measurement, Pace, RequestSample, Trust
from autotune.domain.steadiness import drift
from autotune.domain.validity import RULES
from autotune.domain.workload import Workload

PROMPT_SLACK = 1  # tokens: a server may put a begin-of-text token in front
LAG_SHARE = 0.20  # of the time between tokens: so late a read moves the pace of a short answer
CLOCK_US = 50.0  # less than this is within one token's time
SCHEDULE_SHARE = 0.05  # of the time between two requests
IDLE_MS, LONG_IDLE_MS = 2.0, 20.0  # per request: shorter pauses are the turnaround of any client on a busy host
BIMODAL_REQUESTS = 8  # of fewer, p90 is the largest one


def assess(
    workload: Workload,
    samples: Mapping[str, Sequence[RequestSample]],
    levels: Sequence[LevelMeasurement],
    host: HostLoad | None = None,
) -> Measurement:
    """The measurement of one launch with its trust and every reason for it, the gravest first.

    `host`: how the load generator's host fared; its findings name no level.
    """
    found = [finding for level in levels for finding in _level(workload, level, samples[level.level])]
    found += [] if host is None else _host(host)
    by_trust = {trust: [f for f in found if f.trust is trust] for trust in Trust}
    reasons = [_sentence(f) for trust in (Trust.INVALID, Trust.WARN) for f in by_trust[trust]]
    worst = next((t for t in (Trust.INVALID, Trust.WARN) if by_trust[t]), Trust.OK)
    return Measurement(
        levels={m.level: m for m in levels},
        trust=worst,
        trust_reasons=tuple(reasons),
        findings=tuple(found),
        host=host,
    )


def _sentence(finding: Finding) -> str:
    return f"{finding.level}: {finding.text}" if finding.level else finding.text


def _finding(rule: str, level: str, text: str, value: float | None = None, threshold: float | None = None) -> Finding:
    """`threshold` where it is not the rule's own."""
    known = RULES[rule]
    bound = known.threshold if threshold is None else threshold
    return Finding(rule=rule, level=level, trust=known.trust, text=text, value=value, threshold=bound)


def _bound(rule: str) -> float:
    threshold = RULES[rule].threshold
    assert threshold is not None, rule
    return threshold


def _level(workload: Workload, level: LevelMeasurement, samples: Sequence[RequestSample]) -> Iterator[Finding]:
    good = [s for s in samples if s.error is None]
    if not good:
        yield _finding("nothing_measured", level.level, "no request ended as planned")
        return
    yield from _answers(workload, level, good)
    yield from _client(level, good)
    yield from _schedule(workload, level)
    yield from _amount(level, samples)
    yield from _server(level, good)


def _answers(workload: Workload, level: LevelMeasurement, good: Sequence[RequestSample]) -> Iterator[Finding]:
    """The lengths of a user's own requests, and those that a trace names, are each request's own."""
    name = level.level
    exact = workload.requests_file is None and not any(
        load.name == name and load.trace_file is not None for load in workload.levels
    )
    if level.failed:
        rule = "stream_errors" if level.error_rate > _bound("stream_errors") else "stream_error"
        text = f"{level.failed} of {level.sent} requests failed ({_counts(level.errors)})"
        yield _finding(rule, name, text, level.error_rate)
    paceless = sum(s.tpot_ms is None for s in good) / len(good)
    if any(s.completion_tokens is None for s in good):
        yield _finding("no_usage", name, "the server reports no usage, token counts are unknown")
    elif level.ttft_ms is None:
        yield _finding("no_text", name, "the answers hold no text, token times are unknown")
    elif paceless > _bound("buffered_stream"):
        yield _finding("buffered_stream", name, "whole answers arrive at once, TPOT means nothing", paceless)
    elif paceless > _bound("no_anchor"):
        text = f"{sum(s.tpot_ms is None for s in good)} of {len(good)} answers have no TPOT"
        yield _finding("no_anchor", name, text, paceless)
    elif level.decode_tpot_ms is not None and 1 - level.decode_tpot_ms.n / len(good) > _bound("no_anchor"):
        lost = len(good) - level.decode_tpot_ms.n
        yield _finding("no_anchor", name, f"{lost} of {len(good)} answers have no decode TPOT", lost / len(good))
    if not exact:
        return
    short = sum(s.completion_tokens not in (None, workload.output_tokens) for s in good)
    if short:
        text = f"{short} of {len(good)} answers differ from the asked {workload.output_tokens} tokens"
        yield _finding("short_output", name, text, short / len(good))
    prompt, asked = level.prompt_tokens_mean, workload.prompt_tokens
    if prompt is not None and abs(prompt - asked) > max(PROMPT_SLACK, _bound("prompt_length") * asked):
        text = f"the server counts {prompt:g} tokens a prompt, {asked} were asked"
        yield _finding("prompt_length", name, text, abs(prompt - asked) / asked)
    if prompt and level.uncached_tokens_mean is not None and not workload.shared_prefix_tokens:
        hits = 1 - level.uncached_tokens_mean / prompt
        if hits > _bound("cache_hits"):
            text = f"{hits:.0%} of prompts that share nothing were found in the server's cache"
            yield _finding("cache_hits", name, text, hits)


def _client(level: LevelMeasurement, good: Sequence[RequestSample]) -> Iterator[Finding]:
    name = level.level
    merged = sum(s.coalesced for s in good)
    if merged > _bound("coalesced") * len(good):
        text = f"{merged} of {len(good)} first tokens came in one read with later ones, TTFT is a bound"
        yield _finding("coalesced", name, text, merged / len(good))
    rule = "client_lag" if level.stamp == "user" else "client_behind"
    bound = max(_bound(rule), LAG_SHARE * level.tpot_ms.mean if level.tpot_ms else 0.0)
    lag = level.client_lag_p99_ms
    if lag > bound:
        whose = "from user space and" if level.stamp == "user" else "the kernel's; reads were"
        yield _finding(rule, name, f"arrival times are {whose} up to {lag:.1f} ms late", lag, bound)
    ttft = level.ttft_ms
    if level.concurrency == 1 and ttft is not None and ttft.n >= BIMODAL_REQUESTS:
        ratio = ttft.p90 / max(ttft.p50, 1e-9)
        if ratio > _bound("ttft_bimodal"):
            yield _finding("ttft_bimodal", name, f"p90 of TTFT is {ratio:.1f} times its median, one at a time", ratio)


def _schedule(workload: Workload, level: LevelMeasurement) -> Iterator[Finding]:
    """Whether what was offered is what was asked for."""
    if level.rate_per_s is None:
        yield from _idle(level)
        return
    name, rate = level.level, level.rate_per_s
    offered = rate * workload.output_tokens
    if level.pace is Pace.SUPPLY and level.output_tok_s > _bound("supply_limited") * offered:
        text = f"supply-limited: {level.output_tok_s:.0f} of {offered:.0f} offered tokens/s, no measure of capacity"
        yield _finding("supply_limited", name, text, level.output_tok_s / offered)
    mean = level.in_flight_mean if level.steady_in_flight_mean is None else level.steady_in_flight_mean
    if level.pace is Pace.SUPPLY and mean is not None and mean < _bound("cap_never_binding") * level.concurrency:
        text = f"{mean:.1f} in flight on average: the cap of {level.concurrency} played no part"
        yield _finding("cap_never_binding", name, text, mean / level.concurrency)
    if level.pace in (Pace.CAP, Pace.CLIENT):
        yield _off_schedule(level, level.schedule_lag_p99_ms or 0.0, rate)


def _off_schedule(level: LevelMeasurement, lag_ms: float, rate_per_s: float) -> Finding:
    """Why requests of an open loop were not sent when they were due."""
    late = f"requests were sent up to {lag_ms:.0f} ms behind their schedule"
    bound = max(_bound("send_lag"), SCHEDULE_SHARE * 1000 / rate_per_s)
    if level.pace is Pace.CAP:
        reached = f"{level.rate_reached or 0:.0%} reached"
        text = f"cap-bound, {late}: {level.concurrency} in flight, not {rate_per_s:g}/s, set the pace ({reached})"
        return _finding("cap_bound", level.level, text, lag_ms, bound)
    far = max(_bound("off_schedule"), 1000 / rate_per_s)
    text = f"{late} with room for more in flight: the host of the load generator was too busy to keep it"
    if lag_ms > far:
        return _finding("off_schedule", level.level, text, lag_ms, far)
    return _finding("send_lag", level.level, text, lag_ms, bound)


def _idle(level: LevelMeasurement) -> Iterator[Finding]:
    """In the steady window of a closed loop every stream has a request under way, but for the turnaround."""
    if level.steady_in_flight_mean is None or not level.steady_requests or level.steady_s is None:
        return
    share = 1 - level.steady_in_flight_mean / level.concurrency
    pause_ms = share * level.concurrency * level.steady_s * 1000 / level.steady_requests
    busy = f"{level.steady_in_flight_mean:.2f} were in flight, not {level.concurrency}"
    text = f"streams waited {pause_ms:.1f} ms between requests: {busy}"
    if share > _bound("slots_idle") and pause_ms > LONG_IDLE_MS:
        yield _finding("slots_idle", level.level, text, share)
    elif share > _bound("slot_idle") and pause_ms > IDLE_MS:
        yield _finding("slot_idle", level.level, text, share)


def _amount(level: LevelMeasurement, samples: Sequence[RequestSample]) -> Iterator[Finding]:
    """Whether there is enough to tell a difference, and whether it is of one kind."""
    name = level.level
    if level.sent < _bound("few_requests"):
        yield _finding("few_requests", name, f"{level.sent} requests show a large difference at most", level.sent)
    batches = (level.steady_requests or 0) // level.concurrency
    if batches < _bound("few_batches"):
        yield _finding("few_batches", name, f"{batches} batches in the steady window are too few for an interval")
    moved = drift(level, samples)
    if moved is not None and abs(moved) > _bound("not_steady"):
        text = f"not steady: the second half's time per token is {moved:+.1%} of the first half's"
        yield _finding("not_steady", name, text, moved)


def _server(level: LevelMeasurement, good: Sequence[RequestSample]) -> Iterator[Finding]:
    """With several servers nobody but their router sees a whole request."""
    if len(level.server) != 1:
        return
    (truth,) = level.server.values()
    told = contradictions(level, truth, sum(s.completion_tokens or 0 for s in good))
    for text in told.wrong:
        yield _finding("server_mismatch", level.level, text)
    for text in told.findings:
        yield _finding("server_finding", level.level, text)
    if truth.preemptions:
        text = f"{truth.preemptions} requests were preempted: the KV cache does not hold this load"
        yield _finding("preempted", level.level, text, truth.preemptions)


def _host(host: HostLoad) -> Iterator[Finding]:
    if host.cpu_share is not None and host.cpu_share > _bound("client_cpu"):
        yield _finding("client_cpu", "", f"the load process used {host.cpu_share:.0%} of its core", host.cpu_share)
    if host.switches_per_s is not None and host.switches_per_s > _bound("client_switches"):
        text = f"others took the load process's core {host.switches_per_s:.0f} times a second"
        yield _finding("client_switches", "", text, host.switches_per_s)
    if host.steal_share is not None and host.steal_share > _bound("host_steal"):
        text = f"other guests of the machine took {host.steal_share:.0%} of its processor time"
        yield _finding("host_steal", "", text, host.steal_share)
    if host.clock_step_us is not None:
        window_us = (host.window_s or 0.0) * 1e6
        bound = max(CLOCK_US, _bound("clock") * 1e-6 * window_us)
        if abs(host.clock_step_us) > bound:
            text = f"wall clock and monotonic clock moved {host.clock_step_us:.0f} us apart"
            yield _finding("clock", "", text, abs(host.clock_step_us), bound)


def _counts(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {error}" for error, count in errors.items())
