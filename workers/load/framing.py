"""HTTP/1.1 response framing, just enough to know where a response ends (RFC 9112, sections 2 to 7)."""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_HEAD_BYTES = 65_536
MAX_LINE_BYTES = 8_192
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?", re.DOTALL)
_HEX = re.compile(rb"[0-9A-Fa-f]{1,15}")


class FramingError(ValueError):
    """The bytes are no HTTP/1.1 response."""


class _State(Enum):
    HEAD = auto()
    LENGTH = auto()
    CHUNK_SIZE = auto()
    CHUNK_DATA = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    UNTIL_EOF = auto()
    DONE = auto()


class ResponseFraming:
    """Fed with reads as they come, in pieces of any size.

    `status` is 0 until the head is complete. `complete` says that the response has ended, `reusable` that the
    connection may carry another one afterwards.
    """

    def __init__(self, method: str = "POST") -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.reusable = False
        self._method = method
        self._state = _State.HEAD
        self._held = b""
        self._left = 0

    @property
    def complete(self) -> bool:
        return self._state is _State.DONE

    def header(self, name: bytes) -> bytes:
        """All values of a header, joined; empty when it is absent. `name` in lower case."""
        return b", ".join(value for key, value in self.headers if key.lower() == name)

    def feed(self, data: bytes) -> bytes:
        """The body bytes within this read. Raises FramingError, after which nothing more may be fed."""
        if self._held:
            data = self._held + data
            self._held = b""
        body: list[bytes] = []
        at = 0
        while at < len(data):
            if self._state in (_State.LENGTH, _State.CHUNK_DATA):
                piece = data[at : at + self._left]
                body.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left == 0:
                    self._state = _State.DONE if self._state is _State.LENGTH else _State.CHUNK_END
            elif self._state is _State.UNTIL_EOF:
                body.append(data[at:])
                at = len(data)
            elif self._state is _State.DONE:
                self.reusable = False  # bytes that nobody asked for: this connection is out of step
                at = len(data)
            elif self._state is _State.HEAD:
                end = data.find(b"\r\n\r\n", at)
                if end < 0:
                    at = self._hold(data, at, MAX_HEAD_BYTES)
                else:
                    self._begin(data[at:end])
                    at = end + 4
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    at = self._hold(data, at, MAX_LINE_BYTES)
                else:
                    self._line(data[at:end])
                    at = end + 2
        return b"".join(body)

    def end_of_input(self) -> bool:
        """The peer has closed; whether the response is complete by that."""
        if self._state is _State.UNTIL_EOF:
            self._state = _State.DONE
        self.reusable = False
        return self.complete

    def _hold(self, data: bytes, at: int, limit: int) -> int:
        if len(data) - at > limit:
            raise FramingError("a head or chunk line without end")
        self._held = data[at:]
        return len(data)

    def _line(self, line: bytes) -> None:
        if self._state is _State.CHUNK_SIZE:
            size = _HEX.fullmatch(line.split(b";", 1)[0].strip())
            if size is None:
                raise FramingError(f"not a chunk size: {line[:40]!r}")
            self._left = int(size[0], 16)
            self._state = _State.CHUNK_DATA if self._left else _State.TRAILERS
        elif self._state is _State.CHUNK_END:
            if line:
                raise FramingError("a chunk is longer than its size says")
            self._state = _State.CHUNK_SIZE
        elif not line:
            self._state = _State.DONE

    def _begin(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        status_line = _STATUS_LINE.fullmatch(first)
        if status_line is None:
            raise FramingError(f"not a status line: {first[:80]!r}")
        status = int(status_line[2])
        if status == 101:
            raise FramingError("the server changes to a protocol that nobody asked for")
        if status < 200:
            return  # an interim response: the real head follows
        self.status = status
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip():
                raise FramingError(f"not a header: {line[:80]!r}")
            self.headers.append((name, value.strip()))
        options = {option.strip().lower() for option in self.header(b"connection").split(b",")}
        self.reusable = b"close" not in options and (status_line[1] == b"1" or b"keep-alive" in options)
        self._state = self._body_state()

    def _body_state(self) -> _State:
        if self._method == "HEAD" or self.status in (204, 304):
            return _State.DONE
        codings = self.header(b"transfer-encoding").lower()
        if codings:
            if codings.rsplit(b",", 1)[-1].strip() == b"chunked":
                return _State.CHUNK_SIZE
            self.reusable = False
            return _State.UNTIL_EOF
        lengths = {length.strip() for length in self.header(b"content-length").split(b",")} - {b""}
        if not lengths:
            self.reusable = False
            return _State.UNTIL_EOF
        length = lengths.pop()
        if lengths or not length.isdigit():
            raise FramingError("contradictory or unreadable Content-Length")
        self._left = int(length)
        return _State.LENGTH if self._left else _State.DONE
