"""Rules that say whether a measurement may be compared at all.

Each rule stands for a published way to get a wrong winner: starved clients whose TPOT came out fifty times
too good, cut-off outputs, buffered streams, prompts of another length than asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.domain.measurement import LevelMeasurement, Measurement, RequestSample, Trust
from autotune.domain.workload import Workload

COALESCED_SHARE = 0.10  # above it, TTFT is a bound and no value
BUFFERED_SHARE = 0.50  # above it, a proxy or the server sent whole answers at once
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
        if level.tpot_ms is None or level.ttft_ms is None:
            invalid.append(f"{name}: the stream gave no token times")
        if any(s.completion_tokens is None for s in good):
            invalid.append(f"{name}: the server reports no usage, token counts are unknown")
        short = sum(1 for s in good if s.completion_tokens not in (None, workload.output_tokens))
        if short:
            invalid.append(
                f"{name}: {short} of {len(good)} answers differ from the asked {workload.output_tokens} tokens"
            )
        bursts = sum(1 for s in good if s.events <= 1 and workload.output_tokens > 2)
        if bursts > BUFFERED_SHARE * len(good):
            invalid.append(f"{name}: whole answers arrive at once, TPOT means nothing")
        merged = sum(1 for s in good if s.coalesced)
        if merged > COALESCED_SHARE * len(good):
            warn.append(
                f"{name}: {merged} of {len(good)} first tokens came in one read with later ones, TTFT is a bound"
            )
        if level.stamp == "user" and level.client_lag_p99_ms > USER_LAG_MS:
            warn.append(f"{name}: arrival times are from user space and up to {level.client_lag_p99_ms:.1f} ms late")
    trust = Trust.INVALID if invalid else Trust.WARN if warn else Trust.OK
    return Measurement(levels={m.level: m for m in levels}, trust=trust, trust_reasons=(*invalid, *warn))
