"""From the reads of one exchange to what the server said. Pure.

How the bytes were split into reads never changes what the events say.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from workers.load.framing import FramingError, ResponseFraming

# Every channel in which a server hands out generated tokens: spellings of reasoning, then answers (chat, refusals,
# completions). Calls of tools are a third kind.
_REASONING = ("reasoning_content", "reasoning", "thinking")
_ANSWER = ("content", "refusal", "text")
_ABANDONED = frozenset({"abort", "aborted", "cancelled", "error"})
# Older llama.cpp tells a failure in a field of its own; some proxies hand on the bare JSON of their backend.
_BARE_ERRORS = (b"error", b'{"error"')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Channel(StrEnum):
    """What a piece of generated text is. An event with several counts as the one named last here."""

    REASONING = "reasoning"
    TOOL = "tool"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event: `start` is the offset of its first byte in the body, `end` the one just behind it."""

    start: int
    end: int
    name: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Content:
    """Generated text, and the number of the read that brought the end of its event.

    `start`: where that event begins in the body. `tokens`: all completion tokens so far, where the event tells them.
    `closing`: it carries the finish reason too.
    """

    read: int
    text: str
    start: int = 0
    channel: Channel = Channel.ANSWER
    tokens: int | None = None
    closing: bool = False


@dataclass(slots=True)
class Answer:
    """What the server said. `status` is 0 without a head; `done` means that the terminal event came.

    `ends`: bytes of the body after each read. `encoded`: the body is compressed although nobody asked for that.
    `unasked`: text of a second choice. `receding`: running token counts went down.
    """

    content: list[Content]
    ends: list[int] = field(default_factory=list)
    status: int = 0
    done: bool = False
    fault: bool = False
    malformed: bool = False
    encoded: bool = False
    unasked: bool = False
    receding: bool = False
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def least_tokens(self) -> int:
        """Tokens that the events prove: one each. Not proven by an event that flushes what was held back at the end,
        by a call of a tool (its name and its first argument may be one token), nor by the first event of another
        channel: some servers split the step of the change in two."""
        text = [event for event in self.content if event.channel is not Channel.TOOL and not event.closing]
        switches = sum(1 for a, b in itertools.pairwise(text) if a.channel is not b.channel)
        return len(text) - switches

    @property
    def contradicted(self) -> bool:
        """Whether the usage can't be true: fewer tokens than the events prove, none for text, or a falling count."""
        total = self.completion_tokens
        if total is None:
            return self.receding
        return self.receding or total < self.least_tokens or total < (1 if self.content else 0)


def events(body: bytes) -> Iterator[Event]:
    """The events of a stream (WHATWG HTML, section 9.2.6); a last one without its blank line counts too."""
    start = end = 0
    name = b""
    data: list[bytes] = []
    for line in body.splitlines(keepends=True):  # of bytes: at CR, LF and CRLF alone
        text = line.rstrip(b"\r\n")
        if end == 0:
            text = text.removeprefix(_BYTE_ORDER_MARK)
        end += len(line)
        field_name, _, value = text.partition(b":")
        if not text:
            if data or name:
                yield Event(start, end, name, b"\n".join(data))
            name, data, start = b"", [], end
        elif field_name == b"data":
            data.append(value.removeprefix(b" "))
        elif field_name == b"event":
            name = value.removeprefix(b" ")
        elif field_name.strip() in _BARE_ERRORS:
            name = b"error"
            data.append(text)
    if data:
        yield Event(start, end, name, b"\n".join(data))


def read_answer(reads: Sequence[bytes]) -> Answer:
    """Everything the reads say, as far as they go."""
    framing = ResponseFraming()
    body: list[bytes] = []
    answer = Answer(content=[])
    total = 0
    for data in reads:
        try:
            piece = framing.feed(data)
        except FramingError:
            break
        body.append(piece)
        total += len(piece)
        answer.ends.append(total)
    answer.status = framing.status
    answer.encoded = framing.header(b"content-encoding").lower() not in (b"", b"identity")
    if answer.encoded:
        return answer
    whole = b"".join(body)
    if framing.header(b"content-type").lower().startswith(b"application/json"):
        _take(answer, Event(0, total, b"", whole))
        answer.done = not answer.malformed
        return answer
    for event in events(whole):
        _take(answer, event)
    _drop_repeats(answer)
    return answer


def _drop_repeats(answer: Answer) -> None:
    """Some servers send the whole text so far with every event: one that adds nothing brought no token."""
    texts = [event.text for event in answer.content]
    grows = all(b.startswith(a) for a, b in itertools.pairwise(texts))
    if grows and len({len(text) for text in texts}) > 2:
        kept = [b for a, b in zip(answer.content, answer.content[1:], strict=False) if a.text != b.text]
        answer.content = [answer.content[0], *kept]


def _take(answer: Answer, event: Event) -> None:
    if event.name == b"error":
        answer.fault = True
    elif event.data.strip() == b"[DONE]":
        answer.done = True
    elif event.data.strip():
        try:
            message = json.loads(event.data)
        except (ValueError, RecursionError):
            answer.malformed = True
            return
        if isinstance(message, dict):
            _take_message(answer, message, event)
        else:
            answer.malformed = True


def _take_message(answer: Answer, message: Mapping[str, Any], event: Event) -> None:
    if message.get("error") or message.get("object") == "error":
        answer.fault = True
        return
    choices = message.get("choices")
    found = [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    running = _take_usage(answer, message.get("usage"))
    for choice in found:
        parts = _parts(choice)
        if choice.get("index"):
            answer.unasked = answer.unasked or bool(parts)
            continue
        reason = choice.get("finish_reason")
        closing = isinstance(reason, str) and bool(reason)
        if closing:
            answer.finish_reason = reason
            answer.fault = answer.fault or reason in _ABANDONED
        if parts:
            channel = max((channel for channel, _ in parts), key=list(Channel).index)
            text = "".join(text for _, text in parts)
            read = bisect_left(answer.ends, event.end)
            answer.content.append(Content(read, text, event.start, channel, running, closing))


def _take_usage(answer: Answer, usage: Any) -> int | None:
    """The completion tokens that it tells, if any."""
    if not isinstance(usage, dict):
        return None
    told = _count(usage.get("completion_tokens"))
    if told is not None:
        answer.receding = answer.receding or told < (answer.completion_tokens or 0)
        answer.completion_tokens = told
    prompt = _count(usage.get("prompt_tokens"))
    answer.prompt_tokens = answer.prompt_tokens if prompt is None else prompt
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    answer.cached_tokens = answer.cached_tokens if cached is None else cached
    return told


def _parts(choice: Mapping[str, Any]) -> list[tuple[Channel, str]]:
    """The generated text of a choice, by channel; empty strings are none."""
    delta, message = choice.get("delta"), choice.get("message")
    inner = delta if isinstance(delta, dict) else message if isinstance(message, dict) else choice
    parts = [(Channel.REASONING, _text(inner.get(name))) for name in _REASONING]
    parts += [(Channel.ANSWER, _text(inner.get(name))) for name in _ANSWER]
    calls = inner.get("tool_calls")
    made = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    for function in (*made, inner.get("function_call")):
        if isinstance(function, dict):
            parts += [(Channel.TOOL, _text(function.get(name))) for name in ("name", "arguments")]
    return [(channel, text) for channel, text in parts if text]


def _text(value: Any) -> str:
    """A string, or the strings of a list of typed parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
