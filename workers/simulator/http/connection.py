"""HTTP/1.1 on one connection: requests in, answers out at the moment they are written.

A write goes to the kernel at once, not at the end of the loop's turn, as long as the client reads; behind a client
that does not, the transport holds what was written and `Exchange.blocked` says so. Requests that a client sends
ahead wait until the answers before them have ended, and nothing more is read meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import cast
from wsgiref.handlers import format_date_time

import httptools

MAX_HEAD_BYTES = 64 * 2**10
MAX_BODY_BYTES = 32 * 2**20
KEEP_ALIVE_S = 5.0  # an idle connection is closed after it, as the real servers do
LINGER_S = 1.0  # what a refused client still sends is thrown away so long: a reset would take our answer with it
_PLAIN = "text/plain; charset=utf-8"
Headers = Iterable[tuple[str, str]]


class Exchange:
    """One request and the answer to it. An answer is written by `respond` alone, or by `begin`, `write` and `end`.

    Writing after the client has gone does nothing. `on_gone` is called when the client leaves before the end of
    the answer, `on_drained` when it has read what `blocked` it.
    """

    def __init__(self, connection: Connection) -> None:
        self.method = ""
        self.path = ""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.keep_alive = False
        self.chunked = True  # HTTP/1.0 knows no chunks: there the end of the connection ends the answer
        self.on_gone: Callable[[], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self._connection: Connection | None = connection

    @property
    def blocked(self) -> bool:
        """Whether the client reads more slowly than is written."""
        return self._connection is not None and self._connection.blocked

    def respond(self, status: int, body: bytes, content_type: str = _PLAIN, headers: Headers = ()) -> None:
        """The whole answer."""
        length = [("content-length", str(len(body))), *headers]
        self.write(self._head(status, content_type, length) + (b"" if self.method == "HEAD" else body))
        self._done()

    def begin(self, content_type: str) -> None:
        """The head of an answer with status 200 whose length is not known."""
        if not self.chunked:
            self.keep_alive = False
        self.write(self._head(200, content_type, [("transfer-encoding", "chunked")] if self.chunked else []))

    def write(self, data: bytes) -> None:
        """More of the body, already in the form of `framed`."""
        if self._connection is not None:
            self._connection.send(data)

    def end(self) -> None:
        """The body is complete; its last piece was written with `last_chunk` behind it."""
        self._done()

    def framed(self, data: bytes) -> bytes:
        """A piece of the body as it goes over the wire."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data

    @property
    def last_chunk(self) -> bytes:
        return b"0\r\n\r\n" if self.chunked else b""

    def gone(self) -> None:
        """For the connection: it has ended."""
        self._connection = None
        if (told := self.on_gone) is not None:
            self.on_gone = self.on_drained = None
            told()

    def _head(self, status: int, content_type: str, headers: Headers) -> bytes:
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            f"date: {format_date_time(time.time())}",
            "server: uvicorn",
            f"content-type: {content_type}",
            *(f"{name}: {value}" for name, value in headers),
        ]
        if not self.keep_alive:
            lines.append("connection: close")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    def _done(self) -> None:
        connection, self._connection = self._connection, None
        self.on_gone = self.on_drained = None
        if connection is not None:
            connection.answered(self.keep_alive)


class Connection(asyncio.Protocol):
    """One client. `handle` gets every whole request, one at a time; `open_ones` holds the living connections.

    `closed` is done when the connection has ended.
    """

    def __init__(self, handle: Callable[[Exchange], None], open_ones: set[Connection]) -> None:
        self.blocked = False
        self._handle = handle
        self._open_ones = open_ones
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._fd: int | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._waiting: deque[Exchange] = deque()
        self._current: Exchange | None = None
        self._read = Exchange(self)
        self._url = b""
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._in_head = True
        self._unread_head = 0
        self._refused = False
        self._closing = False

    # --- asyncio ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass
        self._transport.set_write_buffer_limits(high=0)  # `blocked` as soon as anything is left unwritten
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            self._fd = os.dup(sock.fileno())  # our own number: the transport's may be another client's before we hear
        self._open_ones.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._open_ones.discard(self)
        self.closed.set_result(None)
        self._still()
        self._waiting.clear()
        if self._current is not None:
            self._current.gone()

    def eof_received(self) -> bool:
        return False  # a client that stops writing has gone: close

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        if self._current is not None and self._current.on_drained is not None:
            self._current.on_drained()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._still()
        self._unread_head += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._read.keep_alive = False  # no other protocol is spoken here; the request itself was heard
        except httptools.HttpParserError:
            self._refuse(400, "Invalid HTTP request received.")
        if self._in_head and self._unread_head > MAX_HEAD_BYTES:
            self._refuse(431, "Request Header Fields Too Large")
        self._next()

    # --- httptools --------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._read = Exchange(self)
        self._url = b""
        self._head_bytes = 0
        self._body = []
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._read.headers[name.lower()] = value
        self._head_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        exchange = self._read
        exchange.method = self._parser.get_method().decode("ascii")
        exchange.path = self._url.partition(b"?")[0].decode("latin-1")
        exchange.chunked = self._parser.get_http_version() == "1.1"
        exchange.keep_alive = exchange.chunked and self._parser.should_keep_alive()
        length = exchange.headers.get(b"content-length", b"0")
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(431, "Request Header Fields Too Large")
        elif length.isdigit() and int(length) > MAX_BODY_BYTES:
            self._refuse(413, "Request Entity Too Large")
        elif exchange.headers.get(b"expect", b"").lower() == b"100-continue" and not self._busy:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse(413, "Request Entity Too Large")
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._unread_head = 0
        if not self._refused:
            self._read.body = b"".join(self._body)
            self._body = []
            self._waiting.append(self._read)

    # --- answers ----------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """For exchanges: bytes to the client, straight to the kernel: at 64 streams a transport's way is too long."""
        transport = self._transport
        if transport is None:
            return
        if self._fd is not None and not self.blocked:
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:
                written = 0
            except OSError:
                return  # the client has gone: connection_lost follows
            if written == len(data):
                return
            data = data[written:]
        transport.write(data)

    def answered(self, keep_alive: bool) -> None:
        """For exchanges: the answer is complete."""
        self._current = None
        if not keep_alive or (self._closing and not self._waiting):
            self._close()
        elif self._waiting:
            self._loop.call_soon(self._next)  # not from here: answers may be many, and at once
        else:
            self._idle = self._loop.call_later(KEEP_ALIVE_S, self._close)

    def close_when_answered(self) -> None:
        """No request after those that were read."""
        self._closing = True
        if not self._busy:
            self._close()

    def abort(self) -> None:
        """Close at once, whatever the client has not read yet."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def _busy(self) -> bool:
        return self._current is not None or bool(self._waiting)

    def _next(self) -> None:
        """Take the next request if there is one and its turn has come; read on as long as none waits."""
        if self._waiting and self._current is None:
            self._current = self._waiting.popleft()
            self._handle(self._current)
        if self._transport is not None and not self._transport.is_closing():
            if self._waiting:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _refuse(self, status: int, text: str) -> None:
        """The bytes from here on are not understood: say so, behind an answer that is still going on, and close."""
        if self._refused:
            return
        self._refused = True
        if self._busy:
            self._closing = True
            return
        self._current = Exchange(self)
        self._current.respond(status, text.encode())

    def _still(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _close(self) -> None:
        self._still()
        if self._transport is None:
            return
        if self._refused and self._transport.can_write_eof():
            self._transport.write_eof()
            self._idle = self._loop.call_later(LINGER_S, self._transport.close)
        else:
            self._transport.close()
