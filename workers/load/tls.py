"""TLS in memory, between a raw socket and its reader: the kernel's stamps stay those of the socket's own reads.

What a read decrypts counts as arrived with it, so that a record has the time of its last segment.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

READ_BYTES = 64 * 1024


class TlsSession:
    """One connection's cipher state, both ways. Raises ssl.SSLError for what is no TLS or not to be trusted.

    `ended`: the peer has said that nothing more will come, which its socket may tell much later.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self.ended = False
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    async def handshake(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        """Over a connected socket that nobody else reads. Raises OSError, ssl.SSLError among them."""
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush(loop, sock)
                data = await loop.sock_recv(sock, READ_BYTES)
                if not data:
                    raise ConnectionResetError("the server closed during the handshake of TLS") from None
                self._incoming.write(data)
            else:
                await self._flush(loop, sock)
                return

    async def _flush(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        if self._outgoing.pending:
            await loop.sock_sendall(sock, self._outgoing.read())

    def encrypt(self, message: bytes) -> bytes:
        """The records of a message, with what is due besides."""
        self._object.write(message)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """What these bytes complete; b"" for part of a record. Sets `ended` at the peer's goodbye."""
        self._incoming.write(data)
        found: list[bytes] = []
        while not self.ended:
            try:
                piece = self._object.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            self.ended = not piece
            found.append(piece)
        return b"".join(found)

    def replies(self) -> bytes:
        """What the protocol itself has to answer."""
        return self._outgoing.read()


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Verifies names and certificates, by this host's authorities or by those of a PEM file.

    Raises OSError, ssl.SSLError among them, for a file that can't be used.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
