"""Prefill, decode and router as three processes on loopback: what a client sees of them, and what of their ends."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from workers.free_port import free_port
from workers.simulator.router.flags import parse_router_flags

SYSTEM = Path(__file__).parents[2] / "workers/simulator/systems/deepseek-950dt.yaml"
PROMPT = list(range(100, 400))


class Deployment:
    """The three servers; `start` gives a role its words."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {role: free_port("127.0.0.1") for role in ("prefill", "decode", "router")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def url(self, role: str = "router") -> str:
        return f"http://127.0.0.1:{self.ports[role]}"

    def start(self, role: str) -> None:
        if role == "router":
            own = ["router", "--pd-disaggregation", "--prefill", self.url("prefill"), "--decode", self.url("decode")]
        else:
            own = ["launch_server", "--model-path", str(SYSTEM), "--tp-size", "8", "--served-model-name", "m"]
            own += ["--disaggregation-mode", role, "--enable-cache-report", "--enable-metrics"]
        words = [sys.executable, "-m", "workers.simulator", *own, "--port", str(self.ports[role])]
        with (self.folder / f"{role}.log").open("wb") as log:
            self.processes[role] = subprocess.Popen(words, stderr=log)

    def wait(self, role: str, status: int = 200) -> httpx.Response:
        deadline = time.monotonic() + 60
        while True:
            ended = [name for name, process in self.processes.items() if process.poll() is not None]
            assert not ended, (self.folder / f"{ended[0]}.log").read_text()
            assert time.monotonic() < deadline, (self.folder / f"{role}.log").read_text()
            try:
                answer = httpx.get(f"{self.url(role)}/health", trust_env=False)
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            if answer.status_code == status:
                return answer
            time.sleep(0.05)

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(30)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("pd"))
    try:
        for role in deployment.ports:
            deployment.start(role)
        deployment.wait("router")
        yield deployment
    finally:
        deployment.stop()


def post(url: str, **body: Any) -> httpx.Response:
    content = {"model": "m", "prompt": PROMPT, "max_tokens": 8, **body}
    return httpx.post(f"{url}/v1/completions", json=content, timeout=30, trust_env=False)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_an_answer_comes_whole_or_as_a_stream_with_every_token_once(shared: Deployment) -> None:
    whole = post(shared.url()).json()
    assert whole["choices"][0]["text"] == " token" * 8
    assert whole["usage"]["completion_tokens"] == 8
    streamed = events(post(shared.url(), stream=True, stream_options={"include_usage": True}))
    assert "".join(choice["text"] for event in streamed for choice in event["choices"]) == " token" * 8
    assert streamed[-1]["usage"]["completion_tokens"] == 8


def test_tokens_pass_the_router_as_they_come(shared: Deployment) -> None:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 4000, "stream": True}  # most of a minute
    with httpx.stream("POST", f"{shared.url()}/v1/completions", json=body, timeout=90, trust_env=False) as answer:
        assert b"[DONE]" not in next(answer.iter_raw())


def test_usage_tells_what_prefill_found_in_its_cache(shared: Deployment) -> None:
    prompt = list(range(5000, 5700))
    first = post(shared.url(), prompt=prompt).json()["usage"]
    second = post(shared.url(), prompt=prompt).json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == 640  # five blocks of 128
    deadline = time.monotonic() + 30  # only idle servers flush
    while httpx.post(f"{shared.url()}/flush_cache", trust_env=False).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert post(shared.url(), prompt=prompt).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_paths_of_the_router_and_of_a_server(shared: Deployment) -> None:
    with httpx.Client(trust_env=False) as client:
        assert client.get(f"{shared.url()}/v1/models").json()["data"][0]["id"] == "m"
        assert client.get(f"{shared.url()}/nothing").status_code == 404
        for path in ("/server_info", "/get_server_info", "/health_generate", "/metrics"):
            assert client.get(shared.url("decode") + path).status_code == 200
        asked = client.get(f"{shared.url('decode')}/server_info").json()
        assert (asked["tp_size"], asked["disaggregation_mode"], asked["disable_radix_cache"]) == (8, "decode", True)
        assert "sglang:" in client.get(f"{shared.url('decode')}/metrics").text


def test_bad_requests_are_refused_through_the_router(shared: Deployment) -> None:
    assert post(shared.url(), prompt=[]).status_code == 400
    assert post(shared.url(), max_tokens=0).status_code == 400
    bad = httpx.post(f"{shared.url()}/v1/completions", content=b"no json", trust_env=False, timeout=30)
    assert bad.status_code == 400


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_request_past_the_router_has_no_room(shared: Deployment, role: str) -> None:
    answer = post(shared.url(role))
    assert answer.status_code == 400
    assert "bootstrap room" in answer.text


def test_a_client_that_leaves_takes_its_request_along(shared: Deployment) -> None:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 4000, "stream": True}
    with httpx.stream("POST", f"{shared.url()}/v1/completions", json=body, timeout=30, trust_env=False) as answer:
        next(answer.iter_raw())
    deadline = time.monotonic() + 30
    while "sglang:num_running_reqs" not in (text := _running(shared)) or not text.endswith(" 0.0"):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    assert post(shared.url()).status_code == 200


def _running(deployment: Deployment) -> str:
    text = httpx.get(f"{deployment.url('decode')}/metrics", trust_env=False).text
    return next((line for line in text.splitlines() if line.startswith("sglang:num_running_reqs{")), "")


def test_the_router_waits_for_both_and_a_lost_server_is_an_error(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    try:
        deployment.start("router")
        assert len(deployment.wait("router", 503).json()["unhealthy"]) == 2
        deployment.start("decode")
        deployment.wait("decode")
        assert httpx.get(f"{deployment.url()}/health", trust_env=False).status_code == 503
        deployment.start("prefill")
        deployment.wait("router")
        assert post(deployment.url()).status_code == 200
        deployment.processes["prefill"].kill()
        deployment.processes["prefill"].wait(30)
        lost = post(deployment.url())
        assert lost.status_code == 502
        assert "is lost" in lost.text
        del deployment.processes["prefill"]
        assert deployment.url("prefill") in deployment.wait("router", 503).json()["unhealthy"]
    finally:
        deployment.stop()
    assert deployment.processes["router"].returncode == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prefill", "http://h:1", "--decode", "http://h:2"], "--pd-disaggregation is required"),
        (["--pd-disaggregation", "--prefill", "http://h:1"], "requires --prefill and --decode"),
        (["--pd-disaggregation", "--prefill", "http://h:1", "x", "--decode", "http://h:2"], "invalid bootstrap port"),
        (["--pd-disaggregation", "--decode-policy", "cache_aware"], "invalid choice"),
        (["--pd-disaggregation", "--polizy", "random"], "unrecognized arguments"),
    ],
)
def test_the_routers_wrong_arguments_end_with_status_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_router_flags(argv)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
