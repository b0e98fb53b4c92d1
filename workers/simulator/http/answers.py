"""The bodies of answers: what is the same in every event of a stream is encoded once."""

from __future__ import annotations

import json
import time
from typing import Any

from workers.simulator.http.connection import Exchange
from workers.simulator.http.openai_requests import WORD, Asked
from workers.simulator.http.pace import Pace
from workers.simulator.serving.sequence import Sequence

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
_DONE = b"data: [DONE]\n\n"


class Wording:
    """How one request's answers are worded. `cached` says whether usage tells of the prefix cache."""

    def __init__(self, asked: Asked, sequences: list[Sequence], model: str, number: int, *, cached: bool) -> None:
        self.asked = asked
        self.number = number
        self._sequences = sequences
        self._cached = cached
        chat = asked.chat
        kind = ("chatcmpl", "chat.completion") if chat else ("cmpl", "text_completion")
        head = {"id": f"{kind[0]}-{number:08d}", "object": kind[1], "created": int(time.time()), "model": model}
        self._head = head
        self._prefix = encoded({**head, "object": "chat.completion.chunk"} if chat else head)[:-1] + b',"choices":['
        self._known: dict[tuple[int, int], bytes] = {}

    def role(self, index: int) -> bytes:
        """The event before the first token of a choice."""
        delta = {"role": "assistant", "content": ""}
        return self._event({"index": index, "delta": delta, "logprobs": None, "finish_reason": None})

    def tokens(self, index: int, sequence: Sequence, tokens: int) -> bytes:
        """The event that ends with the newest token of a sequence and brings so many."""
        asked, generated = self.asked, sequence.generated
        begin, end = (generated - tokens) * len(WORD), generated * len(WORD)
        ordinary = not (sequence.finished or asked.continuous_usage or asked.logprobs or end > asked.characters)
        if ordinary and (known := self._known.get((index, tokens))):
            return known
        text = (WORD * tokens)[: max(asked.characters - begin, 0)]
        body = {"delta": {"content": text}} if asked.chat else {"text": text}
        choice = {"index": index, **body, **self._logprobs(begin, tokens), **self._reason(sequence.finished)}
        usage = self._usage([sequence]) if asked.continuous_usage else None
        event = self._event(choice, usage)
        if ordinary:
            self._known[index, tokens] = event
        return event

    def last(self) -> bytes:
        """What follows the last token of all."""
        if not self.asked.include_usage:
            return _DONE
        return b"data: " + self._prefix + b'],"usage":' + encoded(self.usage()) + b"}\n\n" + _DONE

    def whole(self) -> dict[str, Any]:
        """An answer without a stream."""
        asked = self.asked
        text = (WORD * asked.max_tokens)[: asked.characters]
        body: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if asked.chat else {"text": text}
        said = {**body, **self._logprobs(0, asked.max_tokens), **self._reason(True)}
        choices = [{"index": index, **said} for index in range(len(self._sequences))]
        return {**self._head, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        return self._usage(self._sequences)

    def _usage(self, sequences: list[Sequence]) -> dict[str, Any]:
        """Prompt tokens count once, however many choices were asked for."""
        firsts = sequences[:: self.asked.choices]
        prompt = sum(sequence.prompt_tokens for sequence in firsts)
        generated = sum(sequence.generated for sequence in sequences)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
        }
        if self._cached:
            usage["prompt_tokens_details"] = {"cached_tokens": sum(sequence.cached for sequence in firsts)}
        return usage

    def _reason(self, finished: bool) -> dict[str, Any]:
        if not finished:
            return {"finish_reason": None, "stop_reason": None}
        reason = "length" if self.asked.stop is None else "stop"
        return {"finish_reason": reason, "stop_reason": self.asked.stop}

    def _logprobs(self, begin: int, tokens: int) -> dict[str, Any]:
        """Every simulated token is certain."""
        if not self.asked.logprobs:
            return {"logprobs": None}
        if self.asked.chat:
            entry = {"token": WORD, "logprob": 0.0, "bytes": list(WORD.encode()), "top_logprobs": []}
            return {"logprobs": {"content": [entry] * tokens}}
        offsets = range(begin, begin + tokens * len(WORD), len(WORD))
        certain = {"token_logprobs": [0.0] * tokens, "top_logprobs": [{WORD: 0.0}] * tokens}
        return {"logprobs": {"text_offset": list(offsets), "tokens": [WORD] * tokens, **certain}}

    def _event(self, choice: dict[str, Any], usage: dict[str, Any] | None = None) -> bytes:
        tail = b"]}" if usage is None else b'],"usage":' + encoded(usage) + b"}"
        return b"data: " + self._prefix + encoded(choice) + tail + b"\n\n"


class StreamedAnswer:
    """A `Receiver` that sends events; `dead` is the body of the error that ends them with the engine.

    While the client does not read, its tokens gather in one event a choice.
    """

    def __init__(
        self, exchange: Exchange, wording: Wording, sequences: list[Sequence], dead: bytes, pace: Pace | None
    ) -> None:
        self._exchange = exchange
        self._wording = wording
        self._index = {sequence: index for index, sequence in enumerate(sequences)}
        self._open = len(sequences)
        self._held: dict[Sequence, int] = {}
        self._begun: set[int] = set()
        self._bytes = b""
        self._dead = dead
        self._pace = pace
        self._events = 0
        exchange.begin(EVENTS)
        exchange.on_drained = self._drained

    def prepare(self, sequence: Sequence, tokens: int) -> None:
        if self._exchange.blocked or sequence in self._held:
            self._held[sequence] = self._held.get(sequence, 0) + tokens
            return
        index = self._index[sequence]
        event = self._wording.tokens(index, sequence, tokens)
        if self._wording.asked.chat and index not in self._begun:
            self._begun.add(index)
            self._bytes += self._exchange.framed(self._wording.role(index))
        self._bytes += self._exchange.framed(event)
        if sequence.finished:
            self._open -= 1
            if not self._open:
                self._bytes += self._exchange.framed(self._wording.last()) + self._exchange.last_chunk

    def flush(self, due_s: float) -> None:
        if not self._bytes:
            return
        data, self._bytes = self._bytes, b""
        self._exchange.write(data)
        if self._pace is not None:
            self._pace.sent(self._wording.number, self._events, int(due_s * 1e9), time.monotonic_ns())
            self._events += 1
        if not self._open:
            self._exchange.end()

    def died(self) -> None:
        framed = self._exchange.framed
        error = b"data: " + self._dead + b"\n\n"
        self._exchange.write(framed(error) + framed(_DONE) + self._exchange.last_chunk)
        self._exchange.end()

    def _drained(self) -> None:
        held, self._held = self._held, {}
        for sequence, tokens in held.items():
            self.prepare(sequence, tokens)
        self.flush(time.monotonic())


class WholeAnswer:
    """A `Receiver` that answers when everything is there."""

    def __init__(self, exchange: Exchange, wording: Wording, sequences: list[Sequence], dead: bytes) -> None:
        self._exchange = exchange
        self._wording = wording
        self._open = len(sequences)
        self._body: bytes | None = None
        self._dead = dead

    def prepare(self, sequence: Sequence, tokens: int) -> None:  # noqa: ARG002 - the receiver's signature
        if sequence.finished:
            self._open -= 1
            if not self._open:
                self._body = encoded(self._wording.whole())

    def flush(self, due_s: float) -> None:  # noqa: ARG002 - the receiver's signature
        if self._body is not None:
            body, self._body = self._body, None
            self._exchange.respond(200, body, JSON)

    def died(self) -> None:
        self._exchange.respond(500, self._dead, JSON)


def encoded(content: Any) -> bytes:
    """Compact JSON, as the servers write it."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
