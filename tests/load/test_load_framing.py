"""Where does a response end, however it is cut into reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.load.framing import FramingError, ResponseFraming

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1A;name=value\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nTrailer: yes\r\n\r\n"
)
LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\nhello\r\n\r\n0\r"


def fed(data: bytes, step: int, method: str = "POST") -> tuple[ResponseFraming, bytes]:
    framing = ResponseFraming(method)
    return framing, b"".join([framing.feed(data[at : at + step]) for at in range(0, len(data), step)])


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_chunks_with_extension_and_trailers(step: int) -> None:
    framing, body = fed(CHUNKED, step)
    assert framing.complete
    assert framing.reusable
    assert body == b"helloabcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_every_byte_of_the_framing_is_needed(step: int) -> None:
    for whole in (CHUNKED, LENGTH):
        framing, _ = fed(whole[:-1], step)
        assert not framing.complete
        assert not framing.end_of_input()


def test_a_body_that_looks_like_the_end_of_chunks() -> None:
    framing, body = fed(LENGTH, 4)
    assert framing.complete
    assert body == b"hello\r\n\r\n0\r"


def test_until_end_of_input() -> None:
    framing, body = fed(b"HTTP/1.1 200 OK\r\n\r\nany bytes\r\n0\r\n\r\n", 6)
    assert not framing.complete
    assert framing.end_of_input()
    assert framing.complete
    assert not framing.reusable
    assert body == b"any bytes\r\n0\r\n\r\n"


def test_interim_responses_come_first() -> None:
    framing, body = fed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", 3)
    assert (framing.status, body, framing.complete) == (503, b"no", True)


@pytest.mark.parametrize(
    ("head", "reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive", True),
        (b"HTTP/1.1 204 Nothing", True),
    ],
)
def test_whether_the_connection_stays(head: bytes, reusable: bool) -> None:
    framing, _ = fed(head + b"\r\n\r\n", 1000)
    assert framing.complete
    assert framing.reusable is reusable


def test_bytes_behind_the_end_spoil_the_connection() -> None:
    framing, body = fed(CHUNKED + b"HTTP/1.1 200", 1000)
    assert framing.complete
    assert not framing.reusable
    assert body == b"helloabcdefghijklmnopqrstuvwxyz"


def test_an_answer_to_head_has_no_body() -> None:
    framing, _ = fed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 1000, "HEAD")
    assert framing.complete


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 9_000,
    ],
)
def test_what_is_no_response(data: bytes) -> None:
    with pytest.raises(FramingError):
        ResponseFraming().feed(data)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.lists(st.integers(1, 30), max_size=60))
def test_no_split_changes_the_body(chunks: list[bytes], steps: list[int]) -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    data += b"".join(b"%X\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    framing = ResponseFraming()
    body = b""
    for step in steps:
        body += framing.feed(data[:step])
        data = data[step:]
    body += framing.feed(data)
    assert body == b"".join(chunks)
    assert framing.complete
    assert framing.reusable
