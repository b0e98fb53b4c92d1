"""An httpx transport that records when bytes arrived instead of handing them on.

The usual stack stamps a token after several awaits, behind the tokens of all other streams: at 64 streams that
moves TTFT by a hundred ms and TPOT by percents. Here the kernel stamps each segment on arrival
(SO_TIMESTAMPNS), a read appends bytes to a list, and nothing is parsed but the framing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

from workers.load.connection import Connection
from workers.load.framing import ResponseFraming
from workers.load.kernel_stamps import ask_for_stamps, keep_stamps_on
from workers.load.recording import End, Recording, realtime_offset_ns
from workers.load.refusal import NotTrusted
from workers.load.tls import TlsSession, tls_context

READ_BYTES = 256 * 1024
CONNECT_S = 60.0  # a peer that takes longer to shake hands is none

Origin = tuple[str, str, int]
_PORTS = {"http": 80, "https": 443}
_Address = tuple[int, tuple[Any, ...]]  # family, and what a socket of it connects to


class RecordingTransport(httpx.AsyncBaseTransport):
    """Carries http and https; runs on asyncio and on uvloop; belongs to one event loop.

    Pass a fresh `Recording` as `extensions["recording"]` of the request: it is filled as bytes arrive and holds
    what came when the exchange fails too. The response carries it under the same name and comes back when it
    has ended; its body can be read as usual. Connections are kept and used again, one request at a time, as
    many as are asked for. Limits on time are the caller's: cancel the request.

    Nothing is sent twice, with one exception: some servers (llama.cpp's) close after an answer without having
    said so, and a request that was just being written then meets no reader. It goes out once more, on a fresh
    connection and with fresh times, and no connection to that server is used for a second request again.

    Certificates are verified, by this host's authorities or by those of `ca_file`. Without `kernel_stamps` no times
    are asked of the kernel, and all are those of our reads, as on a kernel that gives none.

    Raises httpx.UnsupportedProtocol for other schemes, ConnectError, ReadError and RemoteProtocolError as httpx does,
    and NotTrusted for a certificate that can't be verified or a `ca_file` that can't be used.
    """

    def __init__(self, *, ca_file: str | None = None, kernel_stamps: bool = True) -> None:
        if kernel_stamps:
            keep_stamps_on()
        self._kernel_stamps = kernel_stamps
        self._ca_file = ca_file
        self._context: ssl.SSLContext | None = None  # one for all: making it takes a quarter of a second
        self._idle: dict[Origin, list[Connection]] = {}
        self._buffer = bytearray(READ_BYTES)  # one for all connections: each read is copied out at once
        self._addresses: dict[Origin, list[_Address]] = {}
        self._hangs_up: set[Origin] = set()

    async def open(self, url: httpx.URL, connections: int) -> None:
        """Replace all idle connections to the origin of `url` by this many fresh ones.

        Raises httpx.ConnectError as soon as one fails; those opened before stay.
        """
        origin = _origin(url)
        for connection in self._idle.pop(origin, []):
            connection.close()
        for _ in range(connections):
            self._idle.setdefault(origin, []).append(await self._connect(origin))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = _origin(request.url)
        recording = request.extensions.get("recording")
        if not isinstance(recording, Recording):
            recording = Recording()
        message = _serialise(request, await request.aread())
        framing = await self._exchange(origin, request.method, message, recording, self._take(origin))
        if framing is None:
            self._hangs_up.add(origin)
            framing = await self._exchange(origin, request.method, message, recording, None)
        assert framing is not None  # a fresh connection answers or raises
        return httpx.Response(
            framing.status,
            headers=framing.headers,
            stream=_Body(recording, request.method),
            extensions={"recording": recording, "http_version": b"HTTP/1.1"},
        )

    async def _exchange(
        self, origin: Origin, method: str, message: bytes, recording: Recording, connection: Connection | None
    ) -> ResponseFraming | None:
        """One request on this connection, or on a fresh one; None when a used one was closed under it."""
        framing = ResponseFraming(method)
        recording.end = End.OPEN
        recording.send_ns = recording.end_ns = time.monotonic_ns()
        recording.offset_before_ns = realtime_offset_ns()
        try:
            if connection is None:
                try:
                    connection = await self._connect(origin)
                except httpx.ConnectError:
                    recording.end = End.CONNECT
                    raise
            try:
                await connection.exchange(message, framing, recording)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                if recording.end is End.RESET and not recording.reads and connection.answered:
                    return None
                raise
            return framing
        finally:
            recording.end_ns = time.monotonic_ns()
            recording.offset_after_ns = realtime_offset_ns()
            if connection is not None:
                if recording.end is End.COMPLETE and connection.usable and origin not in self._hangs_up:
                    self._idle.setdefault(origin, []).append(connection)
                else:
                    connection.close()

    async def aclose(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    def _take(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        scheme, host, port = origin
        if scheme == "https" and self._context is None:
            try:
                self._context = tls_context(self._ca_file)
            except OSError as error:
                raise NotTrusted(f"ca_file {self._ca_file} can't be used: {error}") from error
        try:
            if origin not in self._addresses:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                self._addresses[origin] = [(family, address) for family, _, _, _, address in found]
        except OSError as error:
            raise httpx.ConnectError(f"{host}: {error}") from error
        problem: OSError | None = None
        for family, address in self._addresses[origin]:
            with contextlib.ExitStack() as unless_connected:
                sock = socket.socket(family, socket.SOCK_STREAM)
                unless_connected.callback(sock.close)
                try:
                    self._set_up(sock)
                    async with asyncio.timeout(CONNECT_S):
                        await loop.sock_connect(sock, address)
                        tls = None
                        if self._context is not None and scheme == "https":
                            tls = TlsSession(self._context, host)
                            await tls.handshake(loop, sock)
                except ssl.SSLCertVerificationError as error:
                    raise NotTrusted(f"{host}:{port}: {error.verify_message}; name its authority in ca_file") from error
                except OSError as error:
                    problem = error
                else:
                    unless_connected.pop_all()
                    return Connection(loop, sock, self._buffer, tls)
        raise httpx.ConnectError(f"{host}:{port}: {problem}")

    def _set_up(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._kernel_stamps:
            ask_for_stamps(sock)


class _Body(httpx.AsyncByteStream):
    """The body of an ended response, taken out of its reads only when somebody wants it."""

    def __init__(self, recording: Recording, method: str) -> None:
        self._recording = recording
        self._method = method

    async def __aiter__(self) -> AsyncIterator[bytes]:
        framing = ResponseFraming(self._method)
        for read in self._recording.reads:
            yield framing.feed(read.data)


def _origin(url: httpx.URL) -> Origin:
    if url.scheme not in _PORTS:
        raise httpx.UnsupportedProtocol(f"the load generator speaks http and https, not {url.scheme}")
    return url.scheme, url.host, url.port or _PORTS[url.scheme]


def _serialise(request: httpx.Request, body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    for name, value in request.headers.raw:
        if name.lower() not in (b"transfer-encoding", b"content-length"):
            lines.append(b"%s: %s" % (name, value))
    lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])
