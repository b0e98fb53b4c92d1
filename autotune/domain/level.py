"""The figures of one load level within one launch."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from autotune.domain.quantiles import Quantiles
from autotune.domain.request_sample import TokenCount
from autotune.domain.server_truth import ServerTruth
from autotune.domain.stop_rule import Decision
from autotune.domain.value import Value


class Pace(StrEnum):
    """What decided when the requests of an open loop were sent.

    `supply`: their schedule, so that no server could show more throughput. `cap`: the most in flight, so that the
    server did not meet the offered rate. `client`: the load generator's own host, which was too busy.
    """

    SUPPLY = "supply"
    CAP = "cap"
    CLIENT = "client"


class LevelMeasurement(Value):
    """One load level within one launch.

    `uncached_tokens_mean` is None where the server says of no request what it found in its cache. Where it says
    it of some, silence means nothing found: engines leave a zero out. `rate_per_s` is what an open loop offered,
    `rate_reached` = requests_per_s / rate_per_s, the share of it that was answered well; the time from the last
    request to its answer counts. These two, `schedule_lag_p99_ms` and `pace` are None in a closed loop.

    `server`: what the counters of each role say.

    `ttft_ms` leaves out first events that came in one read with later ones where their time is known no better than
    1 %, as long as these are few; of more than 10 % all are kept, as upper bounds. `ttft_sched_ms` and `e2e_sched_ms`
    count from when a request was due, open loop only. `itl_ms` is the time per token, weighted by tokens, `icl_ms` the
    raw time between events; both over events that came alone in their read. `tokens_per_event_mean` counts behind the
    first event. `steady_*` are those of the steady window, None where the level is too short to have one.
    `goodput_per_s`: requests that met every goal over the whole level, `slo_attainment` their share of those sent;
    without goals every request that ended as planned. `repeats` of the level were made in one launch, of which this is
    the middle one; their figures lie `repeat_spread_pct` apart. `stopped`: why a level with a `precision`
    ended, and how well its time per token was then known.
    """

    level: str
    concurrency: int
    sent: int
    failed: int
    error_rate: float
    duration_s: float
    tpot_ms: Quantiles | None
    ttft_ms: Quantiles | None
    e2e_ms: Quantiles | None
    output_tok_s: float
    requests_per_s: float
    prompt_tokens_mean: float | None
    output_tokens_mean: float | None
    client_lag_p99_ms: float
    stamp: str
    errors: dict[str, int] = Field(default_factory=dict)
    uncached_tokens_mean: float | None = None
    in_flight_mean: float | None = None
    in_flight_peak: int | None = None
    rate_per_s: float | None = None
    rate_reached: float | None = None
    schedule_lag_p99_ms: float | None = None
    pace: Pace | None = None
    server: dict[str, ServerTruth] = Field(default_factory=dict)
    ttft_sched_ms: Quantiles | None = None
    ttfo_ms: Quantiles | None = None
    e2e_sched_ms: Quantiles | None = None
    decode_tpot_ms: Quantiles | None = None
    itl_ms: Quantiles | None = None
    icl_ms: Quantiles | None = None
    upload_ms: Quantiles | None = None
    tokens_per_event_mean: float | None = None
    counted_by: TokenCount | None = None
    peak_output_tok_s: float | None = None
    steady_s: float | None = None
    steady_requests: int | None = None
    steady_output_tok_s: float | None = None
    steady_requests_per_s: float | None = None
    steady_in_flight_mean: float | None = None
    goodput_per_s: float | None = None
    slo_attainment: float | None = None
    repeats: int = 1
    repeat_spread_pct: float | None = None
    stopped: Decision | None = None

    @property
    def accept_len(self) -> float | None:
        """Tokens a step and request, by the counters of the one server that tells them, else by the stream's events."""
        told = [truth.accept_len for truth in self.server.values() if truth.accept_len is not None]
        return told[0] if len(told) == 1 else self.tokens_per_event_mean
