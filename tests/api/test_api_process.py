"""The api as a process: how it starts, says where it is, and ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from api.app import bind, main, url_of
from api.settings import Settings
from autotune.errors import InvalidRequest
from tests.api.running_api import wait_until


def start(data: Path, **settings: str) -> subprocess.Popen[str]:
    env = {**os.environ, "AUTOTUNE_DATA": str(data), "AUTOTUNE_PORT": "0"}
    env |= {f"AUTOTUNE_{name.upper()}": value for name, value in settings.items()}
    argv = [sys.executable, "-m", "api.app"]
    return subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def process(data: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    with start(data) as started:
        try:
            run_file = data / "run" / "api.json"
            wait_until(lambda: run_file.exists() or started.poll() is not None, seconds=60)
            assert started.poll() is None, started.communicate()
            yield started, json.loads(run_file.read_text())
        finally:
            started.kill()


def test_it_ends_at_once_though_a_browser_listens(tmp_path: Path) -> None:
    with process(tmp_path) as (started, announced):
        assert announced["pid"] == started.pid
        with httpx.Client(base_url=announced["url"], timeout=20, trust_env=False) as client:
            assert client.get("/healthz").json() == {"status": "ok"}
            spaces = client.get("/api/v1/spaces")
            assert spaces.status_code == 200
            assert "vllm-ascend-910c" in {item["name"] for item in spaces.json()}
            assert "simulated-910c" in {item["name"] for item in client.get("/api/v1/templates").json()}
            assert client.get("/api/v1/studies").json()["total"] == 0
            with client.stream("GET", "/api/v1/events") as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("retry:")
                asked = time.monotonic()
                started.send_signal(signal.SIGTERM)
                assert not [line for line in lines if line.startswith("data:")]
                started.wait(timeout=30)
                assert time.monotonic() - asked < 5
        assert not (tmp_path / "run" / "api.json").exists()
        assert started.stderr is not None
        assert started.stderr.read() == ""
    assert (tmp_path / "autotune.db").exists()


def test_neither_ray_nor_optuna_is_loaded() -> None:
    code = "import api.app, sys; print(sorted({m.split('.')[0] for m in sys.modules} & {'ray', 'optuna', 'plotly'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_it_says_in_one_line_why_it_cannot_start(tmp_path: Path) -> None:
    with start(tmp_path, host="0.0.0.0") as started:
        _, complaint = started.communicate(timeout=60)
    assert started.returncode == 1
    assert complaint.startswith("the api cannot start: AUTOTUNE_HOST: 0.0.0.0 can be reached from other machines")
    assert len(complaint.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("HOST", "192.168.0.7", "AUTOTUNE_HOST: 192.168.0.7 can be reached"),
        ("HOST", "::", "AUTOTUNE_HOST: :: can be reached"),
        ("HOST", "example.org", "AUTOTUNE_HOST: example.org can be reached"),
        ("PORT", "99999", "AUTOTUNE_PORT: Input should be less than or equal to 65535"),
        ("DATABASE_URL", "nonsense", "the database URL cannot be used"),
    ],
)
def test_wrong_settings_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    monkeypatch.setenv("AUTOTUNE_PORT", "0")
    monkeypatch.setenv(f"AUTOTUNE_{name}", value)
    try:
        with pytest.raises(SystemExit, match=sentence):
            main()
    finally:
        structlog.reset_defaults()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(data=tmp_path, port=taken.getsockname()[1])
        with pytest.raises(InvalidRequest, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
            bind(settings)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_loopback_addresses_are_fine(tmp_path: Path, host: str) -> None:
    with bind(Settings(data=tmp_path, host=host, port=0)) as listener:
        assert url_of(listener).startswith("http://127.0.0.") or url_of(listener).startswith("http://[::1]")
