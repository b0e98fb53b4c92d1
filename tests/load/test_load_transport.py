"""The recording transport against real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable

import httpx
import pytest
import uvloop

from tests.load.mock_endpoint import MockEndpoint, Script
from workers.load.answer import read_answer
from workers.load.recording import End, Recording
from workers.load.transport import RecordingTransport

Loop = Callable[[], asyncio.AbstractEventLoop]
CLOCK_ERROR_NS = 100_000  # of one clock put on another
BODY = json.dumps({"max_tokens": 5, "prompt": [1, 2, 3]}).encode()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Loop:
    made: Loop = request.param
    return made


def run(loop: Loop, use: Callable[[httpx.AsyncClient, RecordingTransport], Awaitable[None]]) -> None:
    async def main() -> None:
        transport = RecordingTransport()
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client, asyncio.timeout(30):
            await use(client, transport)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def post(client: httpx.AsyncClient, url: str, body: bytes = BODY) -> tuple[httpx.Response, Recording]:
    recording = Recording()
    response = await client.post(url + "/v1/completions", content=body, extensions={"recording": recording})
    assert response.extensions["recording"] is recording
    return response, recording


def test_records_and_hands_over_the_body(loop: Loop) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        response, recording = await post(client, endpoint.url)
        assert response.status_code == 200
        assert response.text.count("wort") == 5
        assert response.text.endswith("data: [DONE]\n\n")
        assert recording.end is End.COMPLETE
        assert recording.sent_ns is not None
        assert recording.send_ns <= recording.sent_ns
        assert recording.arrivals_ns()[-1] <= recording.reads[-1].user_ns <= recording.end_ns
        assert recording.kernel_times or sys.platform != "linux"
        assert recording.send_ns <= endpoint.served[0].received_ns
        answer = read_answer([read.data for read in recording.reads])
        arrived = [recording.arrivals_ns()[content.read] for content in answer.content]
        truth = endpoint.served[0].sent_ns
        assert all(a > s - CLOCK_ERROR_NS for a, s in zip(arrived, truth, strict=True))

    with MockEndpoint() as endpoint:
        run(loop, use)


def test_a_connection_serves_one_request_at_a_time_and_again(loop: Loop) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        await transport.open(httpx.URL(endpoint.url), 2)
        await asyncio.gather(*(post(client, endpoint.url) for _ in range(3)))
        await post(client, endpoint.url)
        assert sorted({served.connection for served in endpoint.served[:3]}) == [0, 1, 2]
        assert endpoint.served[3].connection in (0, 1, 2)
        await transport.open(httpx.URL(endpoint.url), 1)  # fresh ones for old ones
        await post(client, endpoint.url)
        assert endpoint.served[4].connection == 3

    with MockEndpoint() as endpoint:
        run(loop, use)


@pytest.mark.parametrize(
    "script",
    [
        Script(framing="eof"),
        Script(framing="length"),
        Script(piece_bytes=1),
        Script(piece_bytes=1, framing="eof", newline=b"\r\n", comments=True, word="schön 語"),
        Script(word="x" * 300_000, tokens=1),
        Script(status=503),
    ],
    ids=["eof", "length", "bytes", "bytes-eof", "huge", "503"],
)
def test_every_framing_ends(loop: Loop, script: Script) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        for _ in range(2):
            response, recording = await post(client, endpoint.url)
            assert recording.end is End.COMPLETE
            assert response.status_code == script.status
            if script.status == 200:
                count = script.tokens or 5
                answer = read_answer([read.data for read in recording.reads])
                assert "".join(content.text for content in answer.content) == script.word * count

    with MockEndpoint(script) as endpoint:
        run(loop, use)
    assert endpoint.served[1].connection == (1 if script.framing == "eof" else 0)


@pytest.mark.parametrize(
    ("script", "end", "error"),
    [
        (Script(reset_after=2), End.RESET, httpx.ReadError),
        (Script(close_after=2), End.CUT, httpx.RemoteProtocolError),
        (Script(raw=b"SSH-2.0-x\r\n\r\n"), End.PROTOCOL, httpx.RemoteProtocolError),
        (Script(raw=b""), End.RESET, httpx.RemoteProtocolError),
    ],
    ids=["rst", "fin", "no-http", "nothing"],
)
def test_failures_keep_what_came(loop: Loop, script: Script, end: End, error: type[httpx.TransportError]) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        recording = Recording()
        with pytest.raises(error):
            await client.post(endpoint.url, content=BODY, extensions={"recording": recording})
        assert recording.end is end
        assert recording.end_ns >= recording.send_ns
        if script.raw is None:
            assert len(read_answer([read.data for read in recording.reads]).content) == 2
        _, again = await post(client, endpoint.url)
        assert again.end is End.COMPLETE

    with MockEndpoint(lambda number: Script() if number else script) as endpoint:
        run(loop, use)
    assert [served.connection for served in endpoint.served] == [0, 1]


def test_a_reset_behind_data_that_was_not_read_yet(loop: Loop) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        recording = Recording()
        extensions = {"recording": recording}
        task = asyncio.create_task(client.post(endpoint.url, content=BODY, extensions=extensions))
        await asyncio.sleep(0.03)
        block(0.5)  # the whole answer and the reset come meanwhile
        with pytest.raises(httpx.ReadError):
            await task
        assert recording.end is End.RESET
        assert len(read_answer([read.data for read in recording.reads]).content) == 3

    with MockEndpoint(Script(first_s=0.1, reset_after=3)) as endpoint:
        run(loop, use)


def block(seconds: float) -> None:
    time.sleep(seconds)


def test_a_cancelled_request_takes_its_connection_with_it(loop: Loop) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        recording = Recording()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.post(endpoint.url, content=BODY, extensions={"recording": recording})
        assert recording.end is End.OPEN
        assert recording.end_ns - recording.send_ns > 500_000_000
        assert len(read_answer([read.data for read in recording.reads]).content) == 3
        _, again = await post(client, endpoint.url)
        assert again.end is End.COMPLETE

    with MockEndpoint(lambda number: Script() if number else Script(stall_after=3)) as endpoint:
        run(loop, use)
    assert [served.connection for served in endpoint.served] == [0, 1]


def test_a_body_larger_than_any_socket_buffer(loop: Loop) -> None:
    prompt = [123] * 2_000_000
    body = json.dumps({"max_tokens": 2, "prompt": prompt}).encode()

    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        _, recording = await post(client, endpoint.url, body)
        assert recording.sent_ns is not None

    with MockEndpoint() as endpoint:
        run(loop, use)
    assert endpoint.served[0].body["prompt"] == prompt


def test_an_answer_before_the_body_was_read(loop: Loop) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        response, recording = await post(client, endpoint.url, b"[" + b"1," * 4_000_000 + b"1]")
        assert response.status_code == 413
        assert recording.end is End.COMPLETE
        _, again = await post(client, endpoint.url)
        assert again.end is End.COMPLETE

    with MockEndpoint(lambda number: Script() if number else Script(status=413, answer_early=True)) as endpoint:
        run(loop, use)
    assert [served.connection for served in endpoint.served] == [0, 1]


def test_an_idle_connection_that_the_server_closed_is_not_used(loop: Loop) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            await transport.open(httpx.URL(url), 1)
            listener.accept()[0].close()
            await asyncio.sleep(0.05)
        with pytest.raises(httpx.ConnectError):
            await client.post(url, content=BODY)

    run(loop, use)


def test_a_server_that_hangs_up_without_a_word_loses_no_request(loop: Loop) -> None:
    """The request that met the closing connection goes out again; later ones take a fresh one from the start."""

    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        await transport.open(httpx.URL(endpoint.url), 1)
        for _ in range(4):
            response, recording = await post(client, endpoint.url)
            assert response.text.endswith("data: [DONE]\n\n")
            assert recording.end is End.COMPLETE
            served = endpoint.served[-1]
            assert recording.send_ns <= served.received_ns
            assert recording.arrivals_ns()[0] >= recording.send_ns

    with MockEndpoint(Script(hang_up_s=0.02)) as endpoint:
        run(loop, use)
    assert [served.connection for served in endpoint.served] == [0, 1, 2, 3]


def test_a_request_is_sent_twice_at_most_and_never_on_a_connection_that_failed_fresh(loop: Loop) -> None:
    async def use(client: httpx.AsyncClient, _: RecordingTransport) -> None:
        await post(client, endpoint.url)
        with pytest.raises(httpx.TransportError):
            await post(client, endpoint.url)

    with MockEndpoint(lambda number: Script(hang_up_s=0.02) if number == 0 else Script(raw=b"")) as endpoint:
        run(loop, use)
    assert len(endpoint.served) == 2


def test_nobody_listens(loop: Loop) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            recording = Recording()
            with pytest.raises(httpx.ConnectError):
                await client.post(url, content=BODY, extensions={"recording": recording})
            assert recording.end is End.CONNECT
            assert recording.send_ns > 0
            with pytest.raises(httpx.ConnectError):
                await transport.open(httpx.URL(url), 1)

    run(loop, use)


def test_no_other_scheme(loop: Loop) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        with pytest.raises(httpx.UnsupportedProtocol, match="http and https, not ftp"):
            await transport.open(httpx.URL("ftp://127.0.0.1/v1"), 1)

    run(loop, use)


def test_stamps_of_our_own_where_the_kernel_is_not_asked(loop: Loop) -> None:
    async def main() -> None:
        transport = RecordingTransport(kernel_stamps=False)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client, asyncio.timeout(30):
            _, recording = await post(client, endpoint.url)
        assert {read.kernel_ns for read in recording.reads} == {None}
        assert recording.arrivals_ns() == [read.user_ns for read in recording.reads]

    with MockEndpoint() as endpoint, asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def test_without_the_callers_recording(loop: Loop) -> None:
    async def use(client: httpx.AsyncClient, transport: RecordingTransport) -> None:
        response = await client.post(endpoint.url, content=BODY)
        assert isinstance(response.extensions["recording"], Recording)
        assert response.extensions["recording"].reads

    with MockEndpoint() as endpoint:
        run(loop, use)
