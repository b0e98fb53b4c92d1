"""An httpx transport that records when bytes arrived instead of handing them on.

The usual stack stamps a token after several awaits, behind the tokens of all other streams: at 64 streams that
moves TTFT by a hundred ms and TPOT by percents. Here the kernel stamps each segment on arrival
(SO_TIMESTAMPNS), a read appends bytes to a list, and nothing is parsed but the framing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx

from workers.load.framing import FramingError, ResponseFraming
from workers.load.kernel_stamps import CONTROL_BYTES, ask_for_stamps, keep_stamps_on, kernel_time_ns
from workers.load.recording import End, Read, Recording, realtime_offset_ns

READ_BYTES = 256 * 1024

Origin = tuple[str, int]
_Address = tuple[int, tuple[Any, ...]]  # family, and what a socket of it connects to


class RecordingTransport(httpx.AsyncBaseTransport):
    """Carries plain http; runs on asyncio and on uvloop; belongs to one event loop.

    Pass a fresh `Recording` as `extensions["recording"]` of the request: it is filled as bytes arrive and holds
    what came when the exchange fails too. The response carries it under the same name and comes back when it
    has ended; its body can be read as usual. Connections are kept and used again, one request at a time, as
    many as are asked for. Limits on time are the caller's: cancel the request.

    Nothing is sent twice, with one exception: some servers (llama.cpp's) close after an answer without having
    said so, and a request that was just being written then meets no reader. It goes out once more, on a fresh
    connection and with fresh times, and no connection to that server is used for a second request again.

    Raises httpx.UnsupportedProtocol for https, ConnectError, ReadError and RemoteProtocolError as httpx does.
    """

    def __init__(self) -> None:
        keep_stamps_on()
        self._idle: dict[Origin, list[_Connection]] = {}
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
        self, origin: Origin, method: str, message: bytes, recording: Recording, connection: _Connection | None
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

    def _take(self, origin: Origin) -> _Connection | None:
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            if origin not in self._addresses:
                found = await loop.getaddrinfo(*origin, type=socket.SOCK_STREAM)
                self._addresses[origin] = [(family, address) for family, _, _, _, address in found]
        except OSError as error:
            raise httpx.ConnectError(f"{origin[0]}: {error}") from error
        problem: OSError | None = None
        for family, address in self._addresses[origin]:
            with contextlib.ExitStack() as unless_connected:
                sock = socket.socket(family, socket.SOCK_STREAM)
                unless_connected.callback(sock.close)
                try:
                    _set_up(sock)
                    await loop.sock_connect(sock, address)
                except OSError as error:
                    problem = error
                else:
                    unless_connected.pop_all()
                    return _Connection(loop, sock, self._buffer)
        raise httpx.ConnectError(f"{origin[0]}:{origin[1]}: {problem}")


class _Connection:
    """One socket, watched for reading from birth to close, so that an idle one notices its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, buffer: bytearray) -> None:
        self.usable = True
        self.answered = 0
        self._loop = loop
        self._sock = sock
        self._buffer = buffer
        self._unsent = memoryview(b"")
        self._waits_to_write = False
        self._framing: ResponseFraming | None = None
        self._recording = Recording()
        self._ended: asyncio.Future[None] | None = None
        loop.add_reader(sock, self._readable)

    async def exchange(self, message: bytes, framing: ResponseFraming, recording: Recording) -> None:
        """Write the request and return when its response has ended. Close the connection after any error."""
        self._framing = framing
        self._recording = recording
        self._ended = self._loop.create_future()
        self._unsent = memoryview(message)
        recording.send_ns = time.monotonic_ns()
        self._writable()
        if self._unsent:
            self._waits_to_write = True
            self._loop.add_writer(self._sock, self._writable)
        try:
            await self._ended
        finally:
            self._ended = self._framing = None
            if self._unsent:  # answered before the request was read: what remains must not follow
                self._stop_writing()
                self.usable = False

    def close(self) -> None:
        self.usable = False
        if self._sock.fileno() >= 0:
            self._stop_writing()
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            # The peer has gone, perhaps with an answer on its way: what the reader finds decides.
            self.usable = False
            self._stop_writing()
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._recording.sent_ns = time.monotonic_ns()
            self._stop_writing()

    def _stop_writing(self) -> None:
        self._unsent = memoryview(b"")
        if self._waits_to_write:
            self._waits_to_write = False
            self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        # Until nothing is left: where an error waits behind data, uvloop (libuv) calls once and never again.
        while self._read():
            pass

    def _read(self) -> bool:
        """One read; whether there may be more."""
        try:
            size, control, _, _ = self._sock.recvmsg_into([self._buffer], CONTROL_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._end(End.RESET, httpx.ReadError(str(error)))
            return False
        now = time.monotonic_ns()
        if self._framing is None or self._ended is None or self._ended.done():
            # The end of an idle connection, or bytes that nobody asked for.
            self._spoil()
            return False
        if size == 0:
            self._at_end_of_input(self._framing)
            return False
        data = bytes(memoryview(self._buffer)[:size])
        self._recording.reads.append(Read(kernel_time_ns(control), now, data))
        try:
            self._framing.feed(data)
        except FramingError as error:
            self._end(End.PROTOCOL, httpx.RemoteProtocolError(str(error)))
            return False
        if self._framing.complete:
            self._end(End.COMPLETE, None)
        return True

    def _at_end_of_input(self, framing: ResponseFraming) -> None:
        if framing.end_of_input():
            self._end(End.COMPLETE, None)
        elif self._recording.reads:
            self._end(End.CUT, httpx.RemoteProtocolError("the response stops before its end"))
        else:
            self._end(End.RESET, httpx.RemoteProtocolError("the server closed without an answer"))

    def _end(self, end: End, error: httpx.TransportError | None) -> None:
        if error is not None or self._framing is None or not self._framing.reusable:
            self._spoil()
        if self._ended is not None and not self._ended.done():
            self._recording.end = end
            self.answered += end is End.COMPLETE
            if error is None:
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)

    def _spoil(self) -> None:
        self.usable = False
        self._loop.remove_reader(self._sock)


class _Body(httpx.AsyncByteStream):
    """The body of an ended response, taken out of its reads only when somebody wants it."""

    def __init__(self, recording: Recording, method: str) -> None:
        self._recording = recording
        self._method = method

    async def __aiter__(self) -> AsyncIterator[bytes]:
        framing = ResponseFraming(self._method)
        for read in self._recording.reads:
            yield framing.feed(read.data)


def _set_up(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ask_for_stamps(sock)


def _origin(url: httpx.URL) -> Origin:
    if url.scheme != "http":
        raise httpx.UnsupportedProtocol(f"the load generator speaks plain http only, not {url.scheme}")
    return url.host, url.port or 80


def _serialise(request: httpx.Request, body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    for name, value in request.headers.raw:
        if name.lower() not in (b"transfer-encoding", b"content-length"):
            lines.append(b"%s: %s" % (name, value))
    lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])
