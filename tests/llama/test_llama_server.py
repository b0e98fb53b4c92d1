"""The launcher with a real engine: what it serves, how it stops, how it fails."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from autotune.domain.failure import FailureClass, Phase
from tests.llama.running import ALIAS, Server, started
from tests.llama.tiny_model import CONTEXT, KV_BYTES_A_TOKEN
from workers.engines.llama_server import main
from workers.failures.classify import classify
from workers.load.answer import events

STOP_S = 30.0
PROMPT = [300, 401, 502, 603, 704, 805, 906, 300]


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(model, tmp_path_factory.mktemp("served"), "--parallel", "2") as running:
        running.wait_ready()
        yield running


def request(max_tokens: int, **more: object) -> dict[str, object]:
    common = {"model": ALIAS, "prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return {**common, "stream": True, "stream_options": {"include_usage": True}, **more}


def messages(answer: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of each event of a stream, without the terminal one, which must be there."""
    datas = [event.data for event in events(answer.content)]
    assert datas[-1] == b"[DONE]"
    return [json.loads(data) for data in datas[:-1]]


def test_health_models_and_metrics(server: Server) -> None:
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert [m["id"] for m in httpx.get(f"{server.url}/v1/models").json()["data"]] == [ALIAS]
    metrics = httpx.get(f"{server.url}/metrics")
    assert metrics.status_code == httpx.codes.OK
    assert "llamacpp:tokens_predicted_total" in metrics.text


def test_a_stream_of_token_ids_has_exact_lengths_and_usage(server: Server) -> None:
    answer = httpx.post(f"{server.url}/v1/completions", json=request(24), timeout=60)
    assert answer.status_code == httpx.codes.OK
    assert answer.headers["content-type"].startswith("text/event-stream")
    *content, last = messages(answer)
    assert len(content) == 24  # one event a token, each with text: no token of this model is empty
    assert all(m["choices"][0]["text"] and m["choices"][0]["finish_reason"] is None for m in content)
    # Unlike vLLM, usage comes with the event that names the reason, and not in one without choices behind it.
    assert last["choices"][0]["text"] == ""
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["usage"]["prompt_tokens"] == len(PROMPT)
    assert last["usage"]["completion_tokens"] == 24


def test_the_connection_ends_with_the_stream_and_nobody_says_so(server: Server) -> None:
    """Why the load generator must not send the next request on the same connection."""
    body = json.dumps(request(2)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {ALIAS}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + body)
        received = b""
        while piece := connection.recv(65_536):  # comes to an end although we asked for no end
            received += piece
    assert received.endswith(b"0\r\n\r\n")
    assert b"connection: close" not in received.lower()


def test_a_prompt_beyond_the_context_is_refused(server: Server) -> None:
    answer = httpx.post(f"{server.url}/v1/completions", json=request(4, prompt=[300] * (CONTEXT + 1)), timeout=60)
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert "exceeds the available context size" in answer.json()["error"]["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(number: signal.Signals, model: Path, tmp_path: Path) -> None:
    with started(model, tmp_path) as running:
        running.wait_ready()
        assert httpx.post(f"{running.url}/v1/completions", json=request(2), timeout=60).status_code == httpx.codes.OK
        running.process.send_signal(number)
        assert running.process.wait(STOP_S) == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{running.url}/health", timeout=5)


@pytest.mark.parametrize(
    ("flags", "code", "fragment", "expected"),
    [
        (
            ["--cache-type-k", "q8_0", "--cache-type-v", "q8_0", "--flash-attn", "off"],
            1,
            "quantized V cache requires flash_attn to be enabled",
            FailureClass.INVALID_CONFIG,
        ),
        (["--parallel", "300"], 1, "n_seq_max must be <= 256", FailureClass.INVALID_CONFIG),
        (["--ctx-size", "99999999999"], 1, "value too large to convert to int32_t", None),
        (["--flash-attn", "maybe"], 2, "argument -fa/--flash-attn: invalid choice", FailureClass.INVALID_CONFIG),
        (["--batch-size", "0"], -signal.SIGABRT, "GGML_ASSERT(", FailureClass.CRASH),
        (["--batch-size", "8", "--parallel", "16"], -signal.SIGABRT, "GGML_ASSERT(", FailureClass.CRASH),
    ],
)
def test_a_start_that_fails_says_why(
    flags: list[str], code: int, fragment: str, expected: FailureClass | None, model: Path, tmp_path: Path
) -> None:
    with started(model, tmp_path, *flags) as running:
        assert running.process.wait(STOP_S) == code
        text = running.text()
    assert fragment in text
    finding = classify(Phase.READY, code, text, "llama-cpp")
    if expected is not None:
        assert finding.failure_class is expected
        assert fragment in (finding.line or "")


def test_a_context_beyond_memory(model: Path, tmp_path: Path) -> None:
    limit = 4 * 1024**3  # of address space: this test must not fill the memory of a host that overcommits
    tokens = 2 * limit // KV_BYTES_A_TOKEN
    with started(model, tmp_path, "--ctx-size", str(tokens), memory_bytes=limit) as running:
        assert running.process.wait(STOP_S) == 1
        text = running.text()
    assert "insufficient memory" in text
    assert classify(Phase.READY, 1, text, "llama-cpp").failure_class is FailureClass.HOST_OUT_OF_MEMORY


def test_a_port_that_is_taken(server: Server, model: Path, tmp_path: Path) -> None:
    with started(model, tmp_path, port=server.port) as second:
        assert second.process.wait(STOP_S) == 1
        finding = classify(Phase.READY, 1, second.text(), "llama-cpp")
    assert finding.failure_class is FailureClass.INFRASTRUCTURE


def test_drafts_that_outgrow_the_batch_end_the_server_under_load(model: Path, tmp_path: Path) -> None:
    speculation = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "1", "--spec-ngram-simple-size-m", "16")
    with started(model, tmp_path, "--batch-size", "2", "--parallel", "1", *speculation) as running:
        running.wait_ready()
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{running.url}/v1/completions", json=request(2000, prompt=[300] * 20), timeout=60)
        assert running.process.wait(STOP_S) == -signal.SIGABRT
        text = running.text()
    assert "batch must be large enough to hold the sampled and draft tokens" in text
    assert classify(Phase.LOAD, -signal.SIGABRT, text, "llama-cpp").failure_class is FailureClass.CRASH


def test_without_the_engine_it_names_the_target(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert main(["-m", "any.gguf"]) == 1
    assert "make setup-llama-cpp" in capfd.readouterr().err
