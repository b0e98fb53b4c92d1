"""From the recorded reads of one exchange to its figures. Pure; runs after the measuring is over.

Each event counts as arrived with the read that completes it. TCP merges what waits in the queue, and of a merged
read only the last segment's time is known: that of its last event. What needs the time of an event before it, or of
one that has the beginning of the next behind it, is left out or becomes a bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from autotune.domain.measurement import RequestSample, TokenCount
from workers.load.answer import Answer, Channel, Content, read_answer
from workers.load.recording import End, Recording

_ERROR_OF_END = {
    End.OPEN: "cancelled",
    End.CONNECT: "connect",
    End.RESET: "reset",
    End.CUT: "truncated_stream",
    End.PROTOCOL: "protocol",
    End.TIMEOUT: "timeout",
}


def sample(
    recording: Recording,
    index: int,
    start_ns: int,
    user_lag_ms: float = 0.0,
    due_s: float | None = None,
    asked: int | None = None,
) -> RequestSample:
    """The figures of one request; `start_ns` is the monotonic time from which its level counts.

    `user_lag_ms` is how late our reads may have been where the kernel gives no times. `due_s`: when the request
    should have been sent, in an open loop. `asked`: the most tokens that it allows, None where that is not known.
    """
    answer = read_answer([read.data for read in recording.reads])
    error = _error(recording.end, answer, asked)
    arrivals = recording.arrivals_ns()
    kernel = recording.kernel_times
    lags = [read.user_ns - arrival for read, arrival in zip(recording.reads, arrivals, strict=True)]
    content = answer.content
    alone = _alone(answer)
    good = error is None and bool(content)
    first = arrivals[content[0].read] if good else None
    last = arrivals[content[-1].read] if good else recording.end_ns
    found = RequestSample(
        index=index,
        t_send_s=(recording.send_ns - start_ns) / 1e9,
        t_last_s=(last - start_ns) / 1e9,
        ttft_ms=None if first is None else (first - recording.send_ns) / 1e6,
        tpot_ms=_tpot_ms(content, arrivals, answer.completion_tokens) if good else None,
        e2e_ms=(last - recording.send_ns) / 1e6 if good else None,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        finish_reason=answer.finish_reason,
        events=len(content),
        stamp="kernel" if kernel else "user",
        coalesced=bool(content) and not alone[0],
        client_lag_ms=max(lags, default=0) / 1e6 if kernel else user_lag_ms,
        cached_tokens=answer.cached_tokens,
        schedule_lag_ms=None if due_s is None else max((recording.send_ns - start_ns) / 1e6 - due_s * 1e3, 0.0),
        upload_ms=None if recording.sent_ns is None else max(recording.sent_ns - recording.send_ns, 0) / 1e6,
        error=error,
    )
    return found.model_copy(update=_finer(answer, alone, arrivals, recording.send_ns)) if good else found


def _alone(answer: Answer) -> list[bool]:
    """Of each event with text, whether no byte of another one came in its read: the time of that read is its own."""
    content = answer.content
    apart = [
        later.read > event.read and later.start >= answer.ends[event.read]
        for event, later in itertools.pairwise(content)
    ]
    return [before and behind for before, behind in zip([True, *apart], [*apart, True], strict=True)][: len(content)]


def _finer(answer: Answer, alone: Sequence[bool], arrivals: Sequence[int], send_ns: int) -> dict[str, object]:
    """What the times of single events say."""
    content = answer.content
    times = [arrivals[event.read] for event in content]
    counted_by, totals = _totals(content, answer.completion_tokens)
    shown = next((i for i, event in enumerate(content) if event.channel is not Channel.REASONING), None)
    low = None
    if not alone[0]:
        read = content[0].read
        low = max(arrivals[read - 1] - send_ns, 0) / 1e6 if read else 0.0
    gaps = [i for i in range(1, len(content)) if alone[i] and (totals is None or totals[i] > totals[i - 1])]
    return {
        "ttfo_ms": None if shown is None else (times[shown] - send_ns) / 1e6,
        "ttft_low_ms": low,
        "decode_tpot_ms": None if totals is None else _decode_tpot_ms(alone, times, totals),
        "counted_by": counted_by,
        "gaps_ms": tuple((times[i] - times[i - 1]) / 1e6 for i in gaps),
        "gap_tokens": () if totals is None else tuple(totals[i] - totals[i - 1] for i in gaps),
    }


def _totals(content: Sequence[Content], tokens: int | None) -> tuple[TokenCount | None, list[float] | None]:
    """Tokens up to and with each event: as the events tell it, else each for as many; None where none are told."""
    if tokens is None:
        return None, None
    told = [event.tokens for event in content if event.tokens]
    rising = sum(1 for a, b in itertools.pairwise(told) if b > a)  # a falling count never gets here
    # A count that stands still is none of what came so far: some servers tell the tokens of each event alone.
    if len(told) == len(content) and 2 * rising >= len(told) - 1:
        return TokenCount.USAGE, [float(count) for count in told]
    return TokenCount.EVEN, [tokens * (i + 1) / len(content) for i in range(len(content))]


def _decode_tpot_ms(alone: Sequence[bool], times: Sequence[int], totals: Sequence[float]) -> float | None:
    """(a_last - a_j) / (tokens behind event j), j the first event alone in its read.

    Undefined when less than half of the tokens came behind it: so short a stretch says nothing about the whole.
    """
    j = next((i for i, one in enumerate(alone) if one), None)
    if j is None:
        return None
    behind = totals[-1] - totals[j]
    span = times[-1] - times[j]
    if behind <= 0 or span <= 0 or 2 * behind < totals[-1] - totals[0]:
        return None
    return span / behind / 1e6


def _tpot_ms(content: Sequence[Content], arrivals: Sequence[int], tokens: int | None) -> float | None:
    """(a_last - a_1) / (N - 1), also where the first read brought several events.

    The time of such a read is that of its last event, number j of E: the pace from there on, at N / E tokens an
    event, gives the same quotient. Undefined when less than half of the events came later.
    """
    if tokens is None or tokens < 2:
        return None
    j = sum(1 for event in content if event.read == content[0].read)
    later = len(content) - j
    span = arrivals[content[-1].read] - arrivals[content[0].read]
    if span <= 0 or 2 * later < len(content):
        return None
    return span / (tokens - 1) * (len(content) - 1) / later / 1e6


def _error(end: End, answer: Answer, asked: int | None) -> str | None:
    if answer.status not in (0, 200):
        return f"http_{answer.status}"
    if answer.fault:
        return "stream_error"
    if end is not End.COMPLETE:
        return _ERROR_OF_END[end]
    if answer.encoded:
        return "encoded"
    if answer.malformed:
        return "protocol"
    if not answer.done or answer.finish_reason is None:
        return "truncated_stream"
    if answer.unasked:
        return "more_choices"
    if answer.contradicted:
        return "usage_mismatch"
    if asked is not None and max(answer.completion_tokens or 0, answer.least_tokens) > asked:
        return "too_many_tokens"
    return None
