"""One connection of the load generator: writes requests, reads answers with their times."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time

import httpx

from workers.load.framing import FramingError, ResponseFraming
from workers.load.kernel_stamps import CONTROL_BYTES, kernel_time_ns
from workers.load.recording import End, Read, Recording
from workers.load.tls import TlsSession


class Connection:
    """One socket, watched for reading from birth to close, so that an idle one notices its end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        buffer: bytearray,
        tls: TlsSession | None = None,
    ) -> None:
        self.usable = True
        self.answered = 0
        self._loop = loop
        self._sock = sock
        self._buffer = buffer
        self._tls = tls
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
        # Encrypted before the stamp, as a client's cost is not the server's.
        self._unsent = memoryview(message if self._tls is None else self._tls.encrypt(message))
        recording.send_ns = time.monotonic_ns()
        self._writable()
        if self._unsent:
            self._wait_to_write()
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
            return self._while_idle(size)
        if size == 0:
            self._at_end_of_input(self._framing)
            return False
        data = bytes(memoryview(self._buffer)[:size])
        if self._tls is not None:
            try:
                data = self._tls.decrypt(data)
            except ssl.SSLError as error:
                self._end(End.PROTOCOL, httpx.RemoteProtocolError(f"TLS: {error}"))
                return False
            self._reply(self._tls.replies())
        if data:
            self._take(self._framing, Read(kernel_time_ns(control), now, data))
        if self._tls is not None and self._tls.ended and not self._ended.done():
            self._at_end_of_input(self._framing)
        return self.usable or not self._ended.done()

    def _take(self, framing: ResponseFraming, read: Read) -> None:
        self._recording.reads.append(read)
        try:
            framing.feed(read.data)
        except FramingError as error:
            self._end(End.PROTOCOL, httpx.RemoteProtocolError(str(error)))
            return
        if framing.complete:
            self._end(End.COMPLETE, None)

    def _while_idle(self, size: int) -> bool:
        """The end of an idle connection, or bytes that nobody asked for; TLS sends tickets at its own time."""
        if self._tls is not None and size > 0:
            with contextlib.suppress(ssl.SSLError):
                data = self._tls.decrypt(bytes(memoryview(self._buffer)[:size]))
                self._reply(self._tls.replies())
                if not data and not self._tls.ended:
                    return True
        self._spoil()
        return False

    def _reply(self, data: bytes) -> None:
        """A few bytes of TLS itself, behind whatever is being written."""
        if not data:
            return
        waiting = bool(self._unsent)
        self._unsent = memoryview(bytes(self._unsent) + data)
        if not waiting:
            self._writable()
            if self._unsent:
                self._wait_to_write()

    def _wait_to_write(self) -> None:
        if not self._waits_to_write:
            self._waits_to_write = True
            self._loop.add_writer(self._sock, self._writable)

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
