"""An HTTP client for the other servers of a deployment: kept connections, answers passed on as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

CONNECT_S = 5.0
_READ = 2**16


class PeerLost(Exception):
    """The other server does not answer, or its answer broke off."""


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(slots=True)
class _Answer:
    """What the parser tells."""

    complete: bool = False
    body: list[bytes] = field(default_factory=list)

    def on_body(self, data: bytes) -> None:
        self.body.append(data)

    def on_message_complete(self) -> None:
        self.complete = True


class Peer:
    """One server, by its base URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise ValueError(f"{url!r} is no http://host:port")
        self.url = f"http://{parts.netloc}"
        self.host, self.port = parts.hostname, parts.port
        self.in_flight = 0
        self._idle: list[_Connection] = []

    async def call(
        self, method: str, path: str, body: bytes = b"", sink: Callable[[bytes], None] | None = None
    ) -> tuple[int, bytes]:
        """Status and body. With a `sink` every byte of the answer, head included, goes there as it arrives.

        Raises PeerLost. A cancelled call closes its connection, by which the server learns of it.
        """
        self.in_flight += 1
        connection = None
        try:
            connection, status, content, kept = await self._exchange(method, path, body, sink)
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            raise PeerLost(f"{self.url}: {error or type(error).__name__}") from error
        finally:
            self.in_flight -= 1
        if kept:
            self._idle.append(connection)
        else:
            connection.writer.close()
        return status, content

    def close(self) -> None:
        """Close what is idle."""
        for connection in self._idle:
            connection.writer.close()
        self._idle.clear()

    async def _exchange(
        self, method: str, path: str, body: bytes, sink: Callable[[bytes], None] | None
    ) -> tuple[_Connection, int, bytes, bool]:
        connection = await self._connection()
        done = False
        try:
            head = f"{method} {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\ncontent-length: {len(body)}\r\n"
            head += "content-type: application/json\r\n\r\n" if body else "\r\n"
            connection.writer.write(head.encode() + body)
            answer = _Answer()
            parser = httptools.HttpResponseParser(answer)
            while not answer.complete:
                data = await connection.reader.read(_READ)
                if not data:
                    raise ConnectionResetError("the connection broke off")
                parser.feed_data(data)
                if sink is None:
                    continue
                answer.body.clear()
                sink(data)
            done = True
            return connection, parser.get_status_code(), b"".join(answer.body), parser.should_keep_alive()
        finally:
            if not done:
                connection.writer.close()

    async def _connection(self) -> _Connection:
        while self._idle:
            kept = self._idle.pop()
            if not kept.reader.at_eof() and not kept.writer.is_closing():
                return kept
            kept.writer.close()
        async with asyncio.timeout(CONNECT_S):
            return _Connection(*await asyncio.open_connection(self.host, self.port))
