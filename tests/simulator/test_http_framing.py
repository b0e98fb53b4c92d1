"""HTTP/1.1 of the simulated server, byte by byte."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.simulator.server_process import PLAIN, body, serving
from workers.simulator.http.connection import MAX_BODY_BYTES, MAX_HEAD_BYTES


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with serving(tmp_path_factory.mktemp("server") / "log", *PLAIN) as (client, _):
        assert client.base_url.port is not None
        yield client.base_url.port


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        yield sock


def response(sock: socket.socket, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """One answer, read to its end and not a byte further, so that the next one can follow."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += exactly(sock, 1)
    status, *lines = head.decode().split("\r\n")[:-2]
    headers = dict(line.split(": ", 1) for line in lines)
    code = int(status.split()[1])
    if method == "HEAD" or code == 100:
        return code, headers, b""
    if headers.get("transfer-encoding") != "chunked":
        return code, headers, exactly(sock, int(headers["content-length"]))
    content = b""
    while size := int(line(sock), 16):
        content += exactly(sock, size)
        assert line(sock) == b""
    assert line(sock) == b""
    return code, headers, content


def line(sock: socket.socket) -> bytes:
    found = b""
    while not found.endswith(b"\r\n"):
        found += exactly(sock, 1)
    return found[:-2]


def exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = sock.recv(size - len(found))
        assert piece, "the server closed in the middle of an answer"
        found += piece
    return found


def completion(output: int, *, head: str = "", version: str = "1.1", **more: object) -> bytes:
    content = json.dumps(body(4, output, **more)).encode()
    lines = f"POST /v1/completions HTTP/{version}\r\nhost: x\r\ncontent-type: application/json\r\n{head}"
    return f"{lines}content-length: {len(content)}\r\n\r\n".encode() + content


def at_end(sock: socket.socket) -> bool:
    return sock.recv(1) == b""


HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def test_a_connection_carries_one_request_after_the_other(port: int) -> None:
    with connected(port) as sock:
        for output in (1, 2, 3):
            sock.sendall(completion(output, stream=True))
            status, headers, content = response(sock)
            assert (status, headers["transfer-encoding"]) == (200, "chunked")
            assert content.count(b'" token"') == output
            assert content.endswith(b"data: [DONE]\n\n")
            assert "connection" not in headers


def test_requests_sent_ahead_are_answered_in_their_order(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(completion(5, stream=True) + completion(2) + HEALTH + b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n")
        assert response(sock)[2].count(b'" token"') == 5
        assert json.loads(response(sock)[2])["usage"]["completion_tokens"] == 2
        assert response(sock)[0] == 200
        assert response(sock)[0] == 404


def test_a_request_may_come_in_single_bytes(port: int) -> None:
    with connected(port) as sock:
        for byte in completion(2):
            sock.sendall(bytes([byte]))
        assert response(sock)[0] == 200


def test_a_chunked_request(port: int) -> None:
    content = json.dumps(body(4, 2)).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with connected(port) as sock:
        sock.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        for at in range(0, len(content), 7):
            piece = content[at : at + 7]
            sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        sock.sendall(b"0\r\n\r\n")
        assert json.loads(response(sock)[2])["usage"]["completion_tokens"] == 2


def test_a_client_that_asks_first_is_told_to_go_on(port: int) -> None:
    request = completion(1, head="expect: 100-continue\r\n")
    head, content = request.split(b"\r\n\r\n", 1)
    with connected(port) as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert response(sock)[0] == 100
        sock.sendall(content)
        assert response(sock)[0] == 200


def test_http_1_0_is_answered_without_chunks_and_closed(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(completion(3, version="1.0", stream=True))
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    head, content = answer.split(b"\r\n\r\n", 1)
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert content.startswith(b"data: {")
    assert content.endswith(b"data: [DONE]\n\n")


def test_a_client_that_wants_it_closed_gets_it_closed(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(completion(1, head="connection: close\r\n"))
        assert response(sock)[1]["connection"] == "close"
        assert at_end(sock)


def test_methods(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n")
        status, headers, _ = response(sock, "HEAD")
        assert (status, headers["allow"]) == (405, "GET")
        sock.sendall(b"GET /v1/completions?a=b HTTP/1.1\r\nhost: x\r\n\r\n")
        assert response(sock)[0] == 405
        sock.sendall(HEALTH)
        assert response(sock)[2] == b""


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * (MAX_HEAD_BYTES + 1), 431),
        (b"GET / HTTP/1.1\r\n" + b"x: %b\r\n" % (b"a" * 1000) * 70 + b"\r\n", 431),
        (b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), 413),
    ],
)
def test_what_is_too_much_or_not_http_is_refused_and_the_connection_closed(port: int, sent: bytes, status: int) -> None:
    with connected(port) as sock:
        sock.sendall(sent)
        found, headers, _ = response(sock)
        assert (found, headers["connection"]) == (status, "close")
        sock.sendall(b"more that nobody reads")
        assert at_end(sock)


def test_a_body_that_grows_beyond_the_limit_is_refused(port: int) -> None:
    chunk = b"%x\r\n%b\r\n" % (2**20, b" " * 2**20)
    with connected(port) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            sock.sendall(chunk)
        assert response(sock)[0] == 413


def test_nonsense_behind_a_good_request_takes_nothing_from_its_answer(port: int) -> None:
    with connected(port) as sock:
        sock.sendall(completion(4, stream=True) + b"nonsense\r\n\r\n")
        assert response(sock)[2].endswith(b"data: [DONE]\n\n")
        assert at_end(sock)
