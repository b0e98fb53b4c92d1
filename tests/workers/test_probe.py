"""Waiting for readiness."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from workers.free_port import free_port
from workers.probe import Answer, Readiness, wait_ready


class Script:
    """What the endpoint answers, by path: a status and a body; `None` hangs."""

    def __init__(self, **answers: tuple[int, bytes] | None) -> None:
        self.answers = answers
        self.release = threading.Event()


@contextmanager
def endpoint(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

        def do_GET(self) -> None:
            answer = script.answers.get(self.path.strip("/").replace("/", "_"), (404, b""))
            if answer is None:
                script.release.wait(30)
                answer = (503, b"")
            status, body = answer
            self.send_response(status)
            self.send_header("Location", "/health")
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        script.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


def models(*names: str) -> tuple[int, bytes]:
    return 200, json.dumps({"data": [{"id": name} for name in names]}).encode()


class Clockwork:
    """Death after some calls, and a log that grows or stands still."""

    def __init__(self, dies_after_s: float = 1e9, grows: bool = False) -> None:
        self._begun = time.monotonic()
        self._dies_after_s = dies_after_s
        self._grows = grows
        self._size = 0

    def is_dead(self) -> bool:
        return time.monotonic() - self._begun > self._dies_after_s

    def log_size(self) -> int:
        self._size += self._grows
        return self._size


def wait(url: str, clockwork: Clockwork | None = None, ready_s: float = 20, stall_s: float = 20) -> Answer:
    clockwork = clockwork or Clockwork()
    return wait_ready(url, "m", "/health", ready_s, stall_s, clockwork.is_dead, clockwork.log_size)


def test_ready_is_a_healthy_server_that_lists_the_model() -> None:
    with endpoint(Script(health=(200, b""), v1_models=models("other", "m"))) as url:
        assert wait(url).readiness is Readiness.READY


def test_another_model_on_the_port_is_somebody_elses_server() -> None:
    with endpoint(Script(health=(200, b""), v1_models=models("other"))) as url:
        assert wait(url) == Answer(Readiness.FOREIGN, "serves other instead of m")


def test_death_is_noticed_while_an_answer_hangs() -> None:
    with endpoint(Script(health=None)) as url:
        begun = time.monotonic()
        assert wait(url, Clockwork(dies_after_s=0.3)).readiness is Readiness.DIED
        assert time.monotonic() - begun < 5


def test_silence_and_lateness_are_told_apart() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert wait(url, stall_s=0.3).readiness is Readiness.SILENT
    late = wait(url, Clockwork(grows=True), ready_s=0.5, stall_s=0.3)
    assert late.readiness is Readiness.LATE
    assert "ConnectError" in late.detail


def test_a_part_that_is_overdue_ends_the_waiting() -> None:
    clockwork = Clockwork()
    url = f"http://127.0.0.1:{free_port()}"
    answer = wait_ready(url, "m", "/health", 20, 20, clockwork.is_dead, clockwork.log_size, lambda: "weights too late")
    assert answer.readiness is Readiness.LATE
    assert answer.detail.startswith("weights too late: ")


@pytest.mark.parametrize(
    "script",
    [
        Script(health=(503, b"")),
        Script(health=(302, b""), v1_models=models("m")),
        Script(health=(200, b"")),
        Script(health=(200, b""), v1_models=(200, b"no json")),
        Script(health=(200, b""), v1_models=(200, b'{"data": [1]}')),
        Script(health=(200, b""), v1_models=(200, b"[]")),
        Script(health=(200, b""), v1_models=(200, b" " * 3_000_000)),
    ],
    ids=["unhealthy", "redirect", "no-models", "no-json", "odd-models", "odd-list", "endless"],
)
def test_any_other_answer_is_not_ready(script: Script) -> None:
    with endpoint(script) as url:
        assert wait(url, ready_s=0.5).readiness is Readiness.LATE


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with endpoint(Script(health=(200, b""), v1_models=models("m"))) as url:
        assert wait(url).readiness is Readiness.READY


def test_each_port_is_a_fresh_one() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) > 40
    assert all(20_000 <= port < 32_000 for port in ports)
