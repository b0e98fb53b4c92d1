"""From the recorded reads of one exchange to its figures. Pure; runs after the measuring is over.

Each event counts as arrived with the read that completes it. How the bytes were split into reads never changes
what the events say.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.domain.measurement import RequestSample
from workers.load.framing import FramingError, ResponseFraming
from workers.load.recording import End, Recording

# Every channel in which a server hands out generated tokens: answer, two spellings of reasoning, completions.
_CHANNELS = ("content", "reasoning_content", "reasoning", "text")
_ABANDONED = frozenset({"abort", "error"})
_ERROR_OF_END = {
    End.OPEN: "cancelled",
    End.CONNECT: "connect",
    End.RESET: "reset",
    End.CUT: "truncated_stream",
    End.PROTOCOL: "protocol",
    End.TIMEOUT: "timeout",
}


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; `end` is the offset in the body just behind it."""

    end: int
    name: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Content:
    """Generated text, and the number of the read that brought it."""

    read: int
    text: str


@dataclass(slots=True)
class Answer:
    """What the server said. `status` is 0 without a head; `done` means that the terminal event came."""

    content: list[Content]
    status: int = 0
    done: bool = False
    fault: bool = False
    malformed: bool = False
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


def events(body: bytes) -> Iterator[Event]:
    """The events of a stream (WHATWG HTML, section 9.2.6); a last one without its blank line counts too."""
    end = 0
    name = b""
    data: list[bytes] = []
    for line in body.splitlines(keepends=True):
        end += len(line)
        text = line.rstrip(b"\r\n")
        field, _, value = text.partition(b":")
        if not text:
            if data or name:
                yield Event(end, name, b"\n".join(data))
            name, data = b"", []
        elif field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    if data:
        yield Event(end, name, b"\n".join(data))


def read_answer(reads: Sequence[bytes]) -> Answer:
    """Everything the reads say, as far as they go."""
    framing = ResponseFraming()
    body: list[bytes] = []
    ends: list[int] = []
    total = 0
    for data in reads:
        try:
            piece = framing.feed(data)
        except FramingError:
            break
        body.append(piece)
        total += len(piece)
        ends.append(total)
    answer = Answer(content=[], status=framing.status)
    if framing.header(b"content-type").lower().startswith(b"application/json"):
        _take(answer, Event(total, b"", b"".join(body)), bisect_left(ends, total))
        answer.done = not answer.malformed
        return answer
    for event in events(b"".join(body)):
        _take(answer, event, bisect_left(ends, event.end))
    return answer


def sample(
    recording: Recording, index: int, start_ns: int, user_lag_ms: float = 0.0, due_s: float | None = None
) -> RequestSample:
    """The figures of one request; `start_ns` is the monotonic time from which its level counts.

    `user_lag_ms` is how late our reads may have been where the kernel gives no times. `due_s`: when the request
    should have been sent, in an open loop.
    """
    answer = read_answer([read.data for read in recording.reads])
    error = _error(recording.end, answer)
    arrivals = recording.arrivals_ns()
    kernel = recording.kernel_times
    lags = [read.user_ns - arrival for read, arrival in zip(recording.reads, arrivals, strict=True)]
    content = answer.content
    good = error is None and bool(content)
    first = arrivals[content[0].read] if good else None
    last = arrivals[content[-1].read] if good else recording.end_ns
    return RequestSample(
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
        coalesced=_in_first_read(content) > 1,
        client_lag_ms=max(lags, default=0) / 1e6 if kernel else user_lag_ms,
        cached_tokens=answer.cached_tokens,
        schedule_lag_ms=None if due_s is None else max((recording.send_ns - start_ns) / 1e6 - due_s * 1e3, 0.0),
        error=error,
    )


def _in_first_read(content: Sequence[Content]) -> int:
    return sum(1 for event in content if event.read == content[0].read)


def _tpot_ms(content: Sequence[Content], arrivals: Sequence[int], tokens: int | None) -> float | None:
    """(a_last - a_1) / (N - 1), also where the first read brought several events.

    The time of such a read is that of its last event, number j of E: the pace from there on, at N / E tokens an
    event, gives the same quotient. Undefined when less than half of the events came later.
    """
    if tokens is None or tokens < 2:
        return None
    j = _in_first_read(content)
    later = len(content) - j
    span = arrivals[content[-1].read] - arrivals[content[0].read]
    if span <= 0 or 2 * later < len(content):
        return None
    return span / (tokens - 1) * (len(content) - 1) / later / 1e6


def _error(end: End, answer: Answer) -> str | None:
    if answer.status not in (0, 200):
        return f"http_{answer.status}"
    if answer.fault or answer.finish_reason in _ABANDONED:
        return "stream_error"
    if end is not End.COMPLETE:
        return _ERROR_OF_END[end]
    if answer.malformed:
        return "protocol"
    return None if answer.done and answer.finish_reason is not None else "truncated_stream"


def _take(answer: Answer, event: Event, read: int) -> None:
    if event.name == b"error":
        answer.fault = True
    elif event.data.strip() == b"[DONE]":
        answer.done = True
    elif event.data:
        try:
            message = json.loads(event.data)
        except ValueError:
            answer.malformed = True
            return
        if isinstance(message, dict):
            _take_message(answer, message, read)
        else:
            answer.malformed = True


def _take_message(answer: Answer, message: Mapping[str, Any], read: int) -> None:
    if message.get("error") or message.get("object") == "error":
        answer.fault = True
        return
    usage = message.get("usage")
    if isinstance(usage, dict):
        answer.prompt_tokens = _count(usage.get("prompt_tokens"), answer.prompt_tokens)
        answer.completion_tokens = _count(usage.get("completion_tokens"), answer.completion_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            answer.cached_tokens = _count(details.get("cached_tokens"), answer.cached_tokens)
    choices = message.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return
    inner = choice.get("delta") or choice.get("message") or choice
    texts = [inner.get(channel) for channel in _CHANNELS] if isinstance(inner, dict) else []
    text = "".join(part for part in texts if isinstance(part, str))
    if text:
        answer.content.append(Content(read, text))
    reason = choice.get("finish_reason")
    if isinstance(reason, str) and reason:
        answer.finish_reason = reason


def _count(value: Any, before: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else before
