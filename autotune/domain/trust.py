"""Rules that say whether a measurement may be compared at all.

Each rule stands for a published way to get a wrong winner: starved clients whose TPOT came out fifty times
too good, cut-off outputs, buffered streams, prompts of another length than asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.domain.measurement import LevelMeasurement, Measurement, Pace, RequestSample, Trust
from autotune.domain.workload import Workload

COALESCED_SHARE = 0.10  # above it, TTFT is a bound and no value
PACELESS_SHARE = 0.25  # above it, TPOT stands for a selection of the requests
BUFFERED_SHARE = 0.50  # above it, a proxy or the server sent whole answers at once
FAILED_SHARE = 0.01  # above it, those that were answered had an easier time than the level asks for
PROMPT_DRIFT = 0.005  # a longer prompt costs more: trials with another length measure another load
PROMPT_SLACK = 1  # tokens: a server may put a begin-of-text token in front
USER_LAG_MS = 2.0  # with user-space stamps a reader later than this moves TPOT


def assess(
    workload: Workload, samples: Mapping[str, Sequence[RequestSample]], levels: Sequence[LevelMeasurement]
) -> Measurement:
    """The measurement of one launch with its trust and every reason for it."""
    invalid: list[str] = []
    warn: list[str] = []
    for level in levels:
        good = [s for s in samples[level.level] if s.error is None]
        name = level.level
        if not good:
            invalid.append(f"{name}: no request ended as planned")
            continue
        if level.failed:
            text = f"{name}: {level.failed} of {level.sent} requests failed ({_counts(level.errors)})"
            (invalid if level.error_rate > FAILED_SHARE else warn).append(text)
        paceless = sum(1 for s in good if s.tpot_ms is None)
        if any(s.completion_tokens is None for s in good):
            invalid.append(f"{name}: the server reports no usage, token counts are unknown")
        elif level.ttft_ms is None:
            invalid.append(f"{name}: the answers hold no text, token times are unknown")
        elif paceless > BUFFERED_SHARE * len(good):
            invalid.append(f"{name}: whole answers arrive at once, TPOT means nothing")
        elif paceless > PACELESS_SHARE * len(good):
            invalid.append(f"{name}: {paceless} of {len(good)} answers have no TPOT")
        short = sum(1 for s in good if s.completion_tokens not in (None, workload.output_tokens))
        if short:
            invalid.append(
                f"{name}: {short} of {len(good)} answers differ from the asked {workload.output_tokens} tokens"
            )
        prompt = level.prompt_tokens_mean
        if prompt is not None and abs(prompt - workload.prompt_tokens) > max(
            PROMPT_SLACK, PROMPT_DRIFT * workload.prompt_tokens
        ):
            warn.append(f"{name}: the server counts {prompt:g} tokens a prompt, {workload.prompt_tokens} were asked")
        merged = sum(1 for s in good if s.coalesced)
        if merged > COALESCED_SHARE * len(good):
            warn.append(
                f"{name}: {merged} of {len(good)} first tokens came in one read with later ones, TTFT is a bound"
            )
        if level.stamp == "user" and level.client_lag_p99_ms > USER_LAG_MS:
            warn.append(f"{name}: arrival times are from user space and up to {level.client_lag_p99_ms:.1f} ms late")
        if (late := _off_schedule(level)) is not None:
            warn.append(f"{name}: {late}")
    trust = Trust.INVALID if invalid else Trust.WARN if warn else Trust.OK
    return Measurement(levels={m.level: m for m in levels}, trust=trust, trust_reasons=(*invalid, *warn))


def _off_schedule(level: LevelMeasurement) -> str | None:
    """Why requests of an open loop were not sent when they were due; None where they were."""
    if level.pace not in (Pace.CAP, Pace.CLIENT):
        return None
    late = f"requests were sent up to {level.schedule_lag_p99_ms or 0:.0f} ms behind their schedule"
    if level.pace is Pace.CLIENT:
        return f"{late} with room for more in flight: the host of the load generator was too busy to keep it"
    reached = f"{level.rate_reached or 0:.0%} reached"
    return f"cap-bound, {late}: {level.concurrency} in flight, not {level.rate_per_s:g}/s, set the pace ({reached})"


def _counts(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {error}" for error, count in errors.items())
