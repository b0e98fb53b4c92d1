"""The part of a level in which its load is the one that was asked for: no ramp at its start, no drain at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

from autotune.domain.request_sample import RequestSample

# An open loop begins with nothing in flight: the server fills within about two answers.
FILLING = 2.0  # times the mean e2e
FILLING_SHARE = 0.10  # of the schedule, at least
PEAK_S = 1.0  # the least time over which a peak is counted


class Window(NamedTuple):
    """Seconds from the start of the level."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


def steady_window(samples: Sequence[RequestSample], concurrency: int, *, open_loop: bool) -> Window | None:
    """None where a level is too short to have one.

    Closed loop: from when every stream has ended its first request to when the first stream has no further one. Open
    loop: without the first max(2 x mean e2e, 10 % of the schedule) and without what follows the last request's sending.
    """
    if not samples:
        return None
    window = _open(samples) if open_loop else _closed(samples, concurrency)
    return window if window is not None and window.end_s > window.start_s else None


def _closed(samples: Sequence[RequestSample], concurrency: int) -> Window | None:
    """Streams are not told apart by a sample: a request goes on with any stream that is free, or opens one."""
    free: list[float] = []
    firsts: list[float] = []
    for sample in sorted(samples, key=lambda s: (s.t_send_s, s.t_last_s)):
        if free and free[0] <= sample.t_send_s:
            heappop(free)
        else:
            firsts.append(sample.t_last_s)
        heappush(free, sample.t_last_s)
    if len(firsts) < concurrency:
        return None
    return Window(max(firsts), free[0])  # what is left are the ends after which nothing came


def _open(samples: Sequence[RequestSample]) -> Window | None:
    lasting = [s.t_last_s - s.t_send_s for s in samples if s.error is None]
    if not lasting:
        return None
    first, last = min(s.t_send_s for s in samples), max(s.t_send_s for s in samples)
    filling = max(FILLING * math.fsum(lasting) / len(lasting), FILLING_SHARE * (last - first))
    return Window(first + filling, last)


def tokens_within(samples: Sequence[RequestSample], window: Window) -> float:
    """Tokens of good requests that arrived in the window, at an even pace from a request's first event to its last.

    The first event counts as one token; whatever the pace, all tokens of a request count within its own time.
    """
    return math.fsum(_tokens(s, window) for s in samples if s.error is None)


def _tokens(sample: RequestSample, window: Window) -> float:
    if not sample.completion_tokens:
        return 0.0
    last = sample.t_last_s
    first = last if sample.ttft_ms is None else min(sample.t_send_s + sample.ttft_ms / 1000, last)
    one = 1.0 if window.start_s < first <= window.end_s else 0.0
    if last <= first:
        return one * sample.completion_tokens
    shared = max(0.0, min(last, window.end_s) - max(first, window.start_s))
    return one + (sample.completion_tokens - 1) * shared / (last - first)


def peak_tok_s(samples: Sequence[RequestSample], window: Window) -> float:
    """The most tokens a second in equal parts of the window, each a second or a little more: never below the mean."""
    if window.length_s <= 0:
        return 0.0
    parts = max(1, math.floor(window.length_s / PEAK_S))
    length = window.length_s / parts
    # The very first moment belongs to the first part, as the very last belongs to the last one.
    edges = [-math.inf, *(window.start_s + n * length for n in range(1, parts)), math.inf]
    return max(tokens_within(samples, Window(a, b)) for a, b in pairwise(edges)) / length


def mean_in_flight(samples: Sequence[RequestSample], window: Window) -> float:
    """Requests under way, averaged over the window."""
    shares = (max(0.0, min(s.t_last_s, window.end_s) - max(s.t_send_s, window.start_s)) for s in samples)
    return math.fsum(shares) / window.length_s
