"""One request as the load generator saw it."""

from __future__ import annotations

from enum import StrEnum

from autotune.domain.value import Value

TTFT_WIDTH = 0.01  # of the TTFT: a first token whose time is known no better is left out of the percentiles


class TokenCount(StrEnum):
    """How the tokens of each event are known."""

    USAGE = "usage"
    EVEN = "even"


class RequestSample(Value):
    """One request as the load generator saw it.

    `t_send_s` and `t_last_s` count from the start of its level; `t_last_s` of a failed request is when it
    failed. `events` counts those with generated text. `stamp` says where arrival times come from: the kernel,
    or user space where the kernel gives none. `client_lag_ms`: the largest delay between the
    kernel's arrival time and our read; with user stamps the latest that the reader came to anything meanwhile.
    `coalesced`: the first event came in one read with later ones, so that ttft is an upper bound.
    `cached_tokens`: prompt tokens that the server found in its prefix cache, None where it does not say.
    `schedule_lag_ms`: how late the request was sent against its schedule; None in a closed loop.

    `ttfo_ms`: as ttft, to the first event that is no reasoning. `ttft_low_ms`: where the first event came in one read
    with later ones, the least that ttft may have been (the read before it). `decode_tpot_ms`: the pace from the first
    event that came alone in its read, over the tokens behind it; `counted_by` says how these were counted, by the
    server's running usage or by taking each event for as many tokens. `gaps_ms`: times between events that came
    alone in their reads and the events before them; `gap_tokens`: tokens that each of these events brought.
    `upload_ms`: from the first to the last byte of the request.

    `error`: None for a request that ended as planned, else a short class, and no times: `connect`, `timeout`,
    `reset`, `http_503`, `stream_error` (an error or an abort inside a good answer), `truncated_stream` (no proper end),
    `protocol` (no HTTP, or events that are no messages), `encoded` (compressed, which nobody asked for),
    `more_choices` (text of a second choice), `usage_mismatch` (a count that the text contradicts),
    `too_many_tokens` (more than were asked for).
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
    ttfo_ms: float | None = None
    ttft_low_ms: float | None = None
    decode_tpot_ms: float | None = None
    counted_by: TokenCount | None = None
    gaps_ms: tuple[float, ...] = ()
    gap_tokens: tuple[float, ...] = ()
    upload_ms: float | None = None
    error: str | None = None

    @property
    def ttft_sched_ms(self) -> float | None:
        """As `ttft_ms`, from when the request was due: what its user waits. Without a schedule it is due when sent."""
        return None if self.ttft_ms is None else self.ttft_ms + (self.schedule_lag_ms or 0.0)

    @property
    def e2e_sched_ms(self) -> float | None:
        """As `e2e_ms`, from when the request was due."""
        return None if self.e2e_ms is None else self.e2e_ms + (self.schedule_lag_ms or 0.0)

    @property
    def ttft_is_a_bound(self) -> bool:
        """Whether the first event came in one read with later ones, and the time before it is long beside the TTFT."""
        if self.ttft_ms is None or self.ttft_low_ms is None:
            return False
        return self.ttft_ms - self.ttft_low_ms > TTFT_WIDTH * self.ttft_ms
