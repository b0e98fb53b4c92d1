"""A simulated server in a process of its own, and what its clients read from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from workers.free_port import free_port

SYSTEM = Path(__file__).parents[2] / "workers/simulator/systems/qwen3.5-35b-a3b-910c.yaml"
SEED = {"AUTOTUNE_SIM_SEED": "11"}
PLAIN = (
    *("-tp", "2", "--max_num_seqs", "16", "--max-model-len=4096", "--enable-prompt-tokens-details"),
    *("--compilation-config", '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,4,8]}'),
)
READY_S = 60
Server = tuple[httpx.Client, "subprocess.Popen[bytes]"]


def environment(env: dict[str, str] | None = None) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **SEED, **(env or {})}


def command(*flags: str, port: int, system: Path | str = SYSTEM) -> list[str]:
    return [sys.executable, "-m", "workers.simulator", "serve", str(system), "--port", str(port), *flags]


@contextmanager
def serving(log: Path, *flags: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A ready server of the model `sim` and a client of it; the server is ended afterwards."""
    port = free_port("127.0.0.1")
    with log.open("wb") as out:
        argv = command("--served-model-name", "sim", *flags, port=port)
        process = subprocess.Popen(argv, stderr=out, env=environment(env))
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            wait_ready(client, process)
            yield client, process
    finally:
        process.kill()
        process.wait()


def wait_ready(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.02)
    raise AssertionError(f"not ready, exit status {process.poll()}")


def body(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    """A completion request of so many tokens; prompts of one length are the same."""
    fixed = {"model": "sim", "ignore_eos": True, "temperature": 0, "max_tokens": output}
    return {**fixed, "prompt": [100 + i % 900 for i in range(prompt)], **more}


def events(client: httpx.Client, path: str, request: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    """Every event of a stream with its arrival time in s; the stream must end with [DONE]."""
    found: list[tuple[float, dict[str, Any]]] = []
    request = {**request, "stream": True, "stream_options": {"include_usage": True, **request.get("options", {})}}
    with client.stream("POST", path, json=request) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        done = False
        for line in response.iter_lines():
            if line == "data: [DONE]":
                done = True
            elif line:
                found.append((time.monotonic(), json.loads(line.removeprefix("data: "))))
    assert done
    return found


def counter(client: httpx.Client, name: str) -> float:
    """One of vLLM's metrics by its name without the prefix."""
    lines = [x for x in client.get("/metrics").text.splitlines() if x.startswith(f"vllm:{name}{{")]
    assert len(lines) == 1, name
    return float(lines[0].rsplit(" ", 1)[1])
