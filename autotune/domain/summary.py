"""From the requests of a level to its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autotune.domain.goodput import Goal, meets
from autotune.domain.level import LevelMeasurement, Pace
from autotune.domain.quantiles import Quantiles, quantile, quantiles, token_weighted
from autotune.domain.request_sample import RequestSample, TokenCount
from autotune.domain.steady_window import Window, mean_in_flight, peak_tok_s, steady_window, tokens_within

SCHEDULE_LAG_MS = 5.0  # below it, an open loop keeps its schedule at any rate
SCHEDULE_LAG_SHARE = 0.05  # of the mean time between two requests: a later one changes how arrivals bunch
BOUNDS_SHARE = 0.10  # of the requests: so many first tokens whose times are bounds may be left out


def in_flight_peak(samples: Sequence[RequestSample]) -> int:
    """The most requests at one time; one that ends as another is sent makes room for it."""
    changes = sorted([(s.t_send_s, 1) for s in samples] + [(s.t_last_s, -1) for s in samples])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return max(most, 1)


def summarise(
    level: str,
    concurrency: int,
    samples: Sequence[RequestSample],
    rate_per_s: float | None = None,
    goals: Sequence[Goal] = (),
) -> LevelMeasurement:
    """One level's figures; does not depend on the order of the samples. Needs at least one sample.

    `goals` are those of goodput. A schedule without a rate, such as a trace, offers what its due times say.
    """
    rate_per_s = rate_per_s or _offered(samples)
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
    met = sum(meets(s, goals) for s in good)
    timely = _timely(good)
    window = steady_window(samples, concurrency, open_loop=rate_per_s is not None)
    return LevelMeasurement(
        level=level,
        concurrency=concurrency,
        sent=len(samples),
        failed=len(samples) - len(good),
        error_rate=(len(samples) - len(good)) / len(samples),
        duration_s=duration,
        tpot_ms=_of(good, "tpot_ms"),
        ttft_ms=_of(timely, "ttft_ms"),
        e2e_ms=_of(good, "e2e_ms"),
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
        ttft_sched_ms=None if rate_per_s is None else _of(timely, "ttft_sched_ms"),
        ttfo_ms=_of(good, "ttfo_ms"),
        e2e_sched_ms=None if rate_per_s is None else _of(good, "e2e_sched_ms"),
        decode_tpot_ms=_of(good, "decode_tpot_ms"),
        itl_ms=token_weighted(gap for s in good for gap in zip(s.gaps_ms, s.gap_tokens, strict=False)),
        icl_ms=quantiles(gap for s in good for gap in s.gaps_ms),
        upload_ms=_of(good, "upload_ms"),
        tokens_per_event_mean=_tokens_per_event(good),
        counted_by=_counted_by(good),
        peak_output_tok_s=peak_tok_s(samples, Window(start, start + duration)),
        goodput_per_s=met / duration,
        slo_attainment=met / len(samples),
        **({} if window is None else _steady(good, samples, window)),
    )


def _steady(good: Sequence[RequestSample], samples: Sequence[RequestSample], window: Window) -> dict[str, float]:
    ended = sum(window.start_s < s.t_last_s <= window.end_s for s in good)
    return {
        "steady_s": window.length_s,
        "steady_requests": ended,
        "steady_output_tok_s": tokens_within(good, window) / window.length_s,
        "steady_requests_per_s": ended / window.length_s,
        "steady_in_flight_mean": mean_in_flight(samples, window),
    }


def _of(samples: Sequence[RequestSample], figure: str) -> Quantiles | None:
    values: Iterator[float | None] = (getattr(s, figure) for s in samples)
    return quantiles(v for v in values if v is not None)


def _timely(good: Sequence[RequestSample]) -> Sequence[RequestSample]:
    """Those whose first token has a time. Many bounds stay: without them, the rest would be a selection."""
    timely = [s for s in good if not s.ttft_is_a_bound]
    return timely if len(good) - len(timely) <= BOUNDS_SHARE * len(good) else good


def _offered(samples: Sequence[RequestSample]) -> float | None:
    """Requests a second from the first due time to the last; None without a schedule, and for a single moment."""
    due = [s.t_send_s - s.schedule_lag_ms / 1000 for s in samples if s.schedule_lag_ms is not None]
    span = max(due) - min(due) if due else 0.0
    return (len(due) - 1) / span if span > 0 else None


def _counted_by(good: Sequence[RequestSample]) -> TokenCount | None:
    """How decode_tpot came about: even once one request was counted so."""
    ways = {s.counted_by for s in good if s.decode_tpot_ms is not None}
    return TokenCount.EVEN if TokenCount.EVEN in ways else TokenCount.USAGE if TokenCount.USAGE in ways else None


def _tokens_per_event(good: Sequence[RequestSample]) -> float | None:
    """Where running usage tells each event's tokens, behind the first one; else over all events alike."""
    told = [s for s in good if s.counted_by is TokenCount.USAGE and s.gap_tokens]
    if told:
        return math.fsum(math.fsum(s.gap_tokens) for s in told) / sum(len(s.gap_tokens) for s in told)
    known = [s for s in good if s.completion_tokens and s.events]
    return sum(s.completion_tokens or 0 for s in known) / sum(s.events for s in known) if known else None


def _pace(rate_per_s: float, lag_ms: float, *, room: bool) -> Pace:
    if lag_ms <= max(SCHEDULE_LAG_MS, SCHEDULE_LAG_SHARE * 1000 / rate_per_s):
        return Pace.SUPPLY
    return Pace.CLIENT if room else Pace.CAP


def _uncached_tokens_mean(good: Sequence[RequestSample]) -> float | None:
    if all(s.cached_tokens is None for s in good):
        return None
    uncached = [s.prompt_tokens - (s.cached_tokens or 0) for s in good if s.prompt_tokens is not None]
    return math.fsum(uncached) / len(uncached) if uncached else None
