"""A scripted endpoint that notes when it really sent each token: the ground truth of the load generator's tests.

Raw sockets in a thread with its own event loop. It does what it is told, wrong things included.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
UNTIL_EOF = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

CONTROL_PATHS = ("/reset_prefix_cache", "/flush_cache")


@dataclass(frozen=True)
class Script:
    """How to answer; the default is a well-behaved stream. Times in s, counts in tokens unless said otherwise."""

    first_s: float = 0.004
    gap_s: float = 0.002
    tokens: int | None = None  # None: as many as asked
    tokens_per_event: int = 1
    role_event: bool = False  # an event with a role and no text, as soon as the request is there
    comments: bool = False
    newline: bytes = b"\n"
    usage: bool = True
    channel: Literal["text", "content", "reasoning_content", "reasoning"] = "text"
    word: str = "wort "
    framing: Literal["chunked", "length", "eof"] = "chunked"
    piece_bytes: int | None = None  # cut everything into pieces of this size, each sent on its own
    buffered: bool = False  # hold everything back and send it at the end
    done: bool = True
    finish_reason: str | None = "length"
    error_after: int | None = None  # events; then an error object inside the good answer
    reset_after: int | None = None  # events; then RST
    close_after: int | None = None  # events; then FIN in the middle of the answer
    stall_after: int | None = None  # events; then silence
    status: int = 200
    hang_up_s: float | None = None  # so long after a whole answer: close the connection without a word
    answer_early: bool = False  # answer as soon as the head is there, without reading the body
    raw: bytes | None = None  # send exactly this and close
    head: bytes | None = None  # in place of the head that belongs to `framing`
    steps: Sequence[tuple[float, bytes]] | None = None  # (s after the head, text): nothing else is sent as the body
    tear: Literal["close", "reset"] | None = None  # behind the last step, in place of the end of the answer
    running_usage: bool = False  # usage in every event
    gather: int = 0  # answer nothing before so many requests are open
    cached: Callable[[Served], int | None] = lambda _: None  # cached tokens that the usage tells; None: nothing of it


WELL_BEHAVED = Script()


@dataclass
class Served:
    """What happened in truth. `sent_ns`: monotonic, right before each event with text was written."""

    path: str
    body: dict[str, Any]
    received_ns: int
    connection: int
    sent_ns: list[int] = field(default_factory=list)
    head: bytes = b""

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(self.body["prompt"])

    def tpot_ms(self) -> float:
        return (self.sent_ns[-1] - self.sent_ns[0]) / (len(self.sent_ns) - 1) / 1e6


class MockEndpoint:
    """Serves on 127.0.0.1 while it is entered. `script` may depend on the number of the request, from 0.

    `controls`: statuses by path, in turn and the last one for ever; such requests are in `controlled`, as (path,
    number of requests served before). One of `CONTROL_PATHS` that is not listed is unknown. `pages`: texts by path,
    to be got; others are unknown and nothing notes that they were asked for.
    """

    def __init__(
        self,
        script: Script | Callable[[int], Script] = WELL_BEHAVED,
        controls: Mapping[str, Sequence[int]] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.served: list[Served] = []
        self.controlled: list[tuple[str, int]] = []
        self.pages: dict[str, str] = {}
        self._tls = tls
        self._controls = {path: list(statuses) for path, statuses in (controls or {}).items()}
        self.open_now = 0
        self.open_most = 0
        self._gathered = asyncio.Event()
        self._script = script if callable(script) else lambda _: script
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._connection, "127.0.0.1", 0, ssl=self._tls)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        assert self._server is not None
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def of_prompt(self) -> dict[tuple[int, ...], Served]:
        return {served.prompt: served for served in self.served}

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports close in a later turn of the loop

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        number, self._connections = self._connections, self._connections + 1
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while await self._exchange(reader, writer, number):
                pass
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split(b" ")[1].decode()
        if path in CONTROL_PATHS or path in self._controls:
            await reader.readexactly(_length(head))
            return await self._control(path, writer)
        if head.startswith(b"GET "):
            return await self._page(path, writer)
        script = self._script(len(self.served))
        served = Served(path, {}, time.monotonic_ns(), number, head=head)
        self.served.append(served)
        if not script.answer_early:
            served.body = json.loads(await reader.readexactly(_length(head)))
            served.received_ns = time.monotonic_ns()
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            if self.open_now >= script.gather > 0:
                self._gathered.set()
            if script.gather:
                await self._gathered.wait()
            goes_on = await _Answer(script, served, writer).send()
        finally:
            self.open_now -= 1
        if script.hang_up_s is not None:
            await asyncio.sleep(script.hang_up_s)
            return False
        return goes_on

    async def _page(self, path: str, writer: asyncio.StreamWriter) -> bool:
        text = self.pages.get(path)
        body = (text or "").encode()
        writer.write(b"HTTP/1.1 %d Page\r\ncontent-length: %d\r\n\r\n%s" % (200 if text else 404, len(body), body))
        await writer.drain()
        return True

    async def _control(self, path: str, writer: asyncio.StreamWriter) -> bool:
        self.controlled.append((path, len(self.served)))
        statuses = self._controls.get(path, [404])
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        writer.write(b"HTTP/1.1 %d Control\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()
        return True


def _length(head: bytes) -> int:
    lines = head.lower().split(b"\r\n")
    return next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))


class _Answer:
    def __init__(self, script: Script, served: Served, writer: asyncio.StreamWriter) -> None:
        self.script = script
        self.served = served
        self.writer = writer
        self.kept: list[bytes] = []

    async def send(self) -> bool:
        """Whether the connection may carry another request."""
        script = self.script
        if script.raw is not None:
            await self.write(script.raw)
            return False
        if script.status != 200:
            body = b'{"error": {"message": "busy", "code": %d}}' % script.status
            head = b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            await self.write(head % (script.status, len(body)) + body)
            return not script.answer_early
        if script.framing == "length" and script.steps is None:
            return await self.whole()
        await self.write(script.head or (CHUNKED if script.framing == "chunked" else UNTIL_EOF))
        return await (self.stream() if script.steps is None else self.play(script.steps))

    async def play(self, steps: Sequence[tuple[float, bytes]]) -> bool:
        start = time.monotonic()
        for due, text in steps:
            await asyncio.sleep(max(start + due - time.monotonic(), 0))
            await self.text(text, mark=True)
        if self.script.tear == "reset":
            self.reset()
        if self.script.tear is not None:
            return False
        if self.script.framing == "chunked":
            await self.write(b"0\r\n\r\n")
        return self.script.framing != "eof"

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def whole(self) -> bool:
        count = self.count()
        await asyncio.sleep(self.script.first_s + self.script.gap_s * count)
        choice = {"index": 0, "text": self.script.word * count, "finish_reason": self.script.finish_reason}
        body = json.dumps({"choices": [choice], "usage": self.usage(count)}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        await self.write(head + body)
        return True

    async def stream(self) -> bool:
        script = self.script
        start = time.monotonic()
        if script.role_event:
            await self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        events = -(-self.count() // script.tokens_per_event)
        sent = 0
        for number in range(events):
            due = start + script.first_s + number * script.gap_s
            await asyncio.sleep(max(due - time.monotonic(), 0))
            if number == script.error_after:
                await self.event({"error": {"message": "engine died", "code": 500}})
                break
            if number == script.reset_after:
                self.reset()
                return False
            if number == script.close_after:
                return False
            if number == script.stall_after:
                await asyncio.sleep(60)
            count = min(script.tokens_per_event, self.count() - sent)
            sent += count
            if script.comments:
                await self.text(b": still here" + script.newline * 2)
            message = self.choice(script.word * count, None)
            await self.event({**message, "usage": self.usage(sent)} if script.running_usage else message, mark=True)
        await self.tail(sent)
        if self.kept:
            kept, self.kept = b"".join(self.kept), []
            self.script = replace(script, buffered=False)
            await self.text(kept)
        if script.framing == "chunked":
            await self.write(b"0\r\n\r\n")
        return script.framing == "chunked"

    async def tail(self, sent: int) -> None:
        script = self.script
        if script.error_after is None:
            await self.event(self.choice("", script.finish_reason))
            if script.usage:
                await self.event({"choices": [], "usage": self.usage(sent)})
        if script.done:
            await self.text(b"data: [DONE]" + script.newline * 2)

    def count(self) -> int:
        return int(self.served.body["max_tokens"]) if self.script.tokens is None else self.script.tokens

    def usage(self, count: int) -> dict[str, Any]:
        cached = self.script.cached(self.served)
        details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
        return {"prompt_tokens": len(self.served.body.get("prompt", "")), "completion_tokens": count, **details}

    def choice(self, text: str, reason: str | None) -> dict[str, Any]:
        inner = {"text": text} if self.script.channel == "text" else {"delta": {self.script.channel: text}}
        return {"id": "cmpl-1", "choices": [{"index": 0, **inner, "finish_reason": reason}], "usage": None}

    async def event(self, message: dict[str, Any], mark: bool = False) -> None:
        data = b"data: " + json.dumps(message, ensure_ascii=False).encode() + self.script.newline * 2
        await self.text(data, mark)

    async def text(self, data: bytes, mark: bool = False) -> None:
        if self.script.buffered:
            self.kept.append(data)
            return
        await self.write(b"%x\r\n%s\r\n" % (len(data), data) if self.script.framing == "chunked" else data, mark)

    async def write(self, data: bytes, mark: bool = False) -> None:
        """`mark`: note the time; where the data goes out in pieces, that of the last one."""
        step = self.script.piece_bytes or len(data)
        for at in range(0, len(data), step):
            now = time.monotonic_ns()
            self.writer.write(data[at : at + step])
            if mark and at + step >= len(data):
                self.served.sent_ns.append(now)
            if self.script.piece_bytes:
                await asyncio.sleep(0)
        await self.writer.drain()
