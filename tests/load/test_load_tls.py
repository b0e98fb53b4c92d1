"""The recording transport over TLS: the same answers and kernel times, and nobody trusted who can't be verified."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import uvloop

from tests.load.certificates import self_signed
from tests.load.mock_endpoint import MockEndpoint, Script
from workers.load.answer import read_answer
from workers.load.recording import End, Recording
from workers.load.refusal import NotTrusted
from workers.load.transport import RecordingTransport

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")

Loop = Callable[[], asyncio.AbstractEventLoop]
Use = Callable[[httpx.AsyncClient, RecordingTransport], Awaitable[None]]
CLOCK_ERROR_NS = 100_000


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    made: Loop = request.param
    return made


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ssl.SSLContext]:
    path, context = self_signed(tmp_path_factory.mktemp("certificate"))
    return str(path), context


def run(loop: Loop, ca_file: str | None, use: Use) -> None:
    async def main() -> None:
        transport = RecordingTransport(ca_file=ca_file)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client, asyncio.timeout(60):
            await use(client, transport)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def post(client: httpx.AsyncClient, url: str, prompt_tokens: int = 3) -> Recording:
    recording = Recording()
    body = json.dumps({"max_tokens": 5, "prompt": list(range(100_000, 100_000 + prompt_tokens))}).encode()
    response = await client.post(url + "/v1/completions", content=body, extensions={"recording": recording})
    assert response.status_code == 200
    return recording


@pytest.mark.parametrize("script", [Script(), Script(framing="eof"), Script(piece_bytes=7)], ids=["", "eof", "pieces"])
def test_answers_and_times_are_as_without(loop: Loop, certificate: tuple[str, ssl.SSLContext], script: Script) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        for number in range(2):
            recording = await post(client, endpoint.url)
            assert recording.end is End.COMPLETE
            assert recording.kernel_times
            answer = read_answer([read.data for read in recording.reads])
            assert "".join(content.text for content in answer.content) == "wort " * 5
            arrived = [recording.arrivals_ns()[content.read] for content in answer.content]
            truth = endpoint.served[number].sent_ns
            assert all(a > s - CLOCK_ERROR_NS for a, s in zip(arrived, truth, strict=True))
        again = len({served.connection for served in endpoint.served})
        assert again == (2 if script.framing == "eof" else 1)

    with MockEndpoint(script, tls=certificate[1]) as endpoint:
        run(loop, certificate[0], use)


def test_a_body_larger_than_any_socket_buffer(loop: Loop, certificate: tuple[str, ssl.SSLContext]) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        await transport.open(httpx.URL(endpoint.url), 1)
        recording = await post(client, endpoint.url, 400_000)
        assert recording.sent_ns is not None
        assert recording.sent_ns >= recording.send_ns
        assert len(endpoint.served[0].prompt) == 400_000

    with MockEndpoint(tls=certificate[1]) as endpoint:
        run(loop, certificate[0], use)


def test_nobody_is_trusted_without_proof(loop: Loop, certificate: tuple[str, ssl.SSLContext]) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        with pytest.raises(
            NotTrusted, match=r"127\.0\.0\.1:\d+: self.signed certificate; name its authority in ca_file"
        ):
            await transport.open(httpx.URL(endpoint.url), 1)

    with MockEndpoint(tls=certificate[1]) as endpoint:
        run(loop, None, use)


def test_an_authority_that_cannot_be_read(loop: Loop, tmp_path: Path) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        with pytest.raises(NotTrusted, match=r"ca_file .*missing\.pem can't be used"):
            await transport.open(httpx.URL("https://127.0.0.1:1"), 1)

    run(loop, str(tmp_path / "missing.pem"), use)


def test_a_server_without_tls_is_no_server(loop: Loop, certificate: tuple[str, ssl.SSLContext]) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 No\r\n\r\n")
        writer.close()

    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(httpx.ConnectError):
                await transport.open(httpx.URL(f"https://127.0.0.1:{port}"), 1)

    run(loop, certificate[0], use)


def test_an_answer_cut_short(loop: Loop, certificate: tuple[str, ssl.SSLContext]) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            await post(client, endpoint.url)

    with MockEndpoint(Script(close_after=3), tls=certificate[1]) as endpoint:
        run(loop, certificate[0], use)
