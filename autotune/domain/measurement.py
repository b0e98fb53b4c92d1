"""What was observed under load. Times of requests in ms, of windows in s; never a default number.

Definitions (t_send: first byte written; a_i: arrival of content event i; N: completion tokens as the
server counts them):

* ttft = a_1 - t_send; role-only, empty and usage events never count
* tpot = (a_last - a_1) / (N - 1); undefined for N < 2, and left out of means then. Where one read brought
  several first events, the quotient is taken from the pace after that read; undefined when more than half of
  the events, or all of them, came in it: a stream that arrives at once has no pace
* e2e  = a_last - t_send
* output_tok_s = completion tokens of good requests / (last arrival - first send) of the level
* in flight: from t_send to a_last, or to the failure; its mean over the level x duration / requests is the mean
  e2e (Little's law)
* uncached tokens = prompt tokens that the server did not find in its prefix cache, by its own usage
* schedule lag (open loop) = t_send - the time at which the request was due; ttft and e2e count from t_send
* percentiles: linear interpolation (Hyndman and Fan 7), stored with their n
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from pydantic import Field

from autotune.domain.value import Value

SCHEDULE_LAG_MS = 5.0  # below it, an open loop keeps its schedule at any rate
SCHEDULE_LAG_SHARE = 0.05  # of the mean time between two requests: a later one changes how arrivals bunch


class RequestSample(Value):
    """One request as the load generator saw it.

    `t_send_s` and `t_last_s` count from the start of its level; `t_last_s` of a failed request is when it
    failed. `events` counts those with generated text. `stamp` says where arrival times come from: the kernel,
    or user space where the kernel gives none. `client_lag_ms`: the largest delay between the
    kernel's arrival time and our read; with user stamps the latest that the reader came to anything meanwhile.
    `coalesced`: the first event came in one read with later ones, so that ttft is an upper bound.
    `cached_tokens`: prompt tokens that the server found in its prefix cache, None where it does not say.
    `schedule_lag_ms`: how late the request was sent against its schedule; None in a closed loop.

    `error`: None for a request that ended as planned, else a short class, and no times: `connect`, `timeout`,
    `reset`, `http_503`, `stream_error` (an error inside a good answer), `truncated_stream` (no proper end),
    `protocol`.
    """

    index: int
    t_send_s: float
    t_last_s: float
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    events: int = 0
    stamp: str = "kernel"
    coalesced: bool = False
    client_lag_ms: float = 0.0
    cached_tokens: int | None = None
    schedule_lag_ms: float | None = None
    error: str | None = None


class Quantiles(Value):
    """Mean and percentiles of n values; p99 of fewer than 100 values is close to their maximum."""

    n: int = Field(ge=1)
    mean: float
    p50: float
    p90: float
    p99: float


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


class Trust(StrEnum):
    """Whether a measurement may be compared."""

    OK = "ok"
    WARN = "warn"
    INVALID = "invalid"


class Measurement(Value):
    """All load levels of one launch, with the reasons for which they may not be trusted."""

    levels: dict[str, LevelMeasurement] = Field(min_length=1)
    trust: Trust = Trust.OK
    trust_reasons: tuple[str, ...] = ()


def quantile(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation between closest ranks of sorted values (numpy's default method)."""
    position = (len(ordered) - 1) * q
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """None for no values: there is no such thing as a default latency."""
    if not values:
        return None
    ordered = sorted(values)
    return Quantiles(
        n=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=quantile(ordered, 0.50),
        p90=quantile(ordered, 0.90),
        p99=quantile(ordered, 0.99),
    )


def in_flight_peak(samples: Sequence[RequestSample]) -> int:
    """The most requests at one time; one that ends as another is sent makes room for it."""
    changes = sorted([(s.t_send_s, 1) for s in samples] + [(s.t_last_s, -1) for s in samples])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return max(most, 1)


def summarise(
    level: str, concurrency: int, samples: Sequence[RequestSample], rate_per_s: float | None = None
) -> LevelMeasurement:
    """One level's figures; does not depend on the order of the samples. Needs at least one sample."""
    good = [s for s in samples if s.error is None]
    start = min(s.t_send_s for s in samples)
    duration = max(max(s.t_last_s for s in samples) - start, 1e-9)
    errors: dict[str, int] = {}
    for sample in sorted((s for s in samples if s.error is not None), key=lambda s: s.index):
        errors[str(sample.error)] = errors.get(str(sample.error), 0) + 1
    lags = sorted(s.client_lag_ms for s in samples)
    prompts = [s.prompt_tokens for s in good if s.prompt_tokens is not None]
    outputs = [s.completion_tokens for s in good if s.completion_tokens is not None]
    waits = sorted(s.schedule_lag_ms for s in samples if s.schedule_lag_ms is not None)
    lag = quantile(waits, 0.99) if waits else None
    requests_per_s = len(good) / duration
    peak = in_flight_peak(samples)
    return LevelMeasurement(
        level=level,
        concurrency=concurrency,
        sent=len(samples),
        failed=len(samples) - len(good),
        error_rate=(len(samples) - len(good)) / len(samples),
        duration_s=duration,
        tpot_ms=quantiles([s.tpot_ms for s in good if s.tpot_ms is not None]),
        ttft_ms=quantiles([s.ttft_ms for s in good if s.ttft_ms is not None]),
        e2e_ms=quantiles([s.e2e_ms for s in good if s.e2e_ms is not None]),
        output_tok_s=sum(outputs) / duration,
        requests_per_s=requests_per_s,
        prompt_tokens_mean=math.fsum(prompts) / len(prompts) if prompts else None,
        output_tokens_mean=math.fsum(outputs) / len(outputs) if outputs else None,
        client_lag_p99_ms=quantile(lags, 0.99),
        stamp="user" if any(s.stamp == "user" for s in samples) else "kernel",
        errors=errors,
        uncached_tokens_mean=_uncached_tokens_mean(good),
        in_flight_mean=math.fsum(s.t_last_s - s.t_send_s for s in samples) / duration,
        in_flight_peak=peak,
        rate_per_s=rate_per_s,
        rate_reached=None if rate_per_s is None else requests_per_s / rate_per_s,
        schedule_lag_p99_ms=lag,
        pace=None if rate_per_s is None or lag is None else _pace(rate_per_s, lag, room=peak < concurrency),
    )


def _pace(rate_per_s: float, lag_ms: float, *, room: bool) -> Pace:
    if lag_ms <= max(SCHEDULE_LAG_MS, SCHEDULE_LAG_SHARE * 1000 / rate_per_s):
        return Pace.SUPPLY
    return Pace.CLIENT if room else Pace.CAP


def _uncached_tokens_mean(good: Sequence[RequestSample]) -> float | None:
    if all(s.cached_tokens is None for s in good):
        return None
    uncached = [s.prompt_tokens - (s.cached_tokens or 0) for s in good if s.prompt_tokens is not None]
    return math.fsum(uncached) / len(uncached) if uncached else None
