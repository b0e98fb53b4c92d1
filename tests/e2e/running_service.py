"""Starts the whole service as a user would, on free ports and in a folder of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

SMALL_STUDY: dict[str, Any] = {
    "name": "small",
    "space": "vllm-ascend-910c",
    "deployment": {
        "template": "simulated-910c",
        "model": "Qwen3.5-35B-A3B",
        "devices": 2,
        "tensor_parallel": 2,
        "max_model_len": 4096,
    },
    "workload": {
        "prompt_tokens": 16,
        "output_tokens": 12,
        "levels": [{"concurrency": 1, "requests": 2}, {"concurrency": 4, "requests": 4}],
        "warmup_requests": 1,
        "request_timeout_s": 20,
    },
    "sla": ["error_rate == 0"],
    "budget": {"trials": 12, "wall_time_s": 600},
    "parallel_trials": 2,
    "seed": 5,
    "gate_launches": 2,
    "recipes": ["report-a-aiv-static", "report-a-mtp4"],
    "confirmation": {"finalists": 1, "rounds": 2},
}


class RunningService:
    """A started `autotune up`: its address, its process, its data."""

    def __init__(self, process: subprocess.Popen[str], data: Path, state: Mapping[str, Any]) -> None:
        self.process = process
        self.data = data
        self.url = str(state["url"])
        self.client = httpx.Client(base_url=self.url, timeout=20, trust_env=False)

    def pid(self, name: str) -> int:
        """The process id of `api` or `dispatcher`, once it runs: `up` starts them again when they die."""
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up:
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.Error):  # it ends while we look at it
                    words = child.cmdline()
                    if f"api.{name}" in words or (name == "api" and "api.app" in words):
                        return child.pid
            time.sleep(0.1)
        raise AssertionError(f"no {name} runs")

    def create(self, **changes: Any) -> int:
        answer = self.client.post("/api/v1/studies", json={**SMALL_STUDY, **changes})
        assert answer.status_code == 201, answer.text
        return int(answer.json()["study"]["id"])

    def study(self, study_id: int) -> dict[str, Any]:
        answer = self.client.get(f"/api/v1/studies/{study_id}")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def lines(self, study_id: int) -> list[dict[str, Any]]:
        """The trials in short."""
        answer = self.client.get(f"/api/v1/studies/{study_id}/trials", params={"limit": 500})
        items: list[dict[str, Any]] = answer.json()["items"]
        return items

    def trials(self, study_id: int) -> list[dict[str, Any]]:
        """The trials with everything that is known about each."""
        path = f"/api/v1/studies/{study_id}/trials"
        return [self.client.get(f"{path}/{line['number']}").json() for line in self.lines(study_id)]

    def wait_until(self, what: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if what():
                    return
            except httpx.TransportError:
                pass  # the api is being started again
            time.sleep(0.1)
        raise AssertionError("it did not come about in time")

    def wait_until_finished(self, study_id: int, seconds: float = 150) -> dict[str, Any]:
        self.wait_until(lambda: self.study(study_id)["study"]["state"] != "running", seconds)
        body: dict[str, Any] = self.study(study_id)["study"]
        return body

    def server_processes(self) -> list[int]:
        """Living processes that carry the marker of an attempt of this data directory."""
        found = []
        for process in psutil.process_iter():
            try:
                env = process.environ()
            except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            if "AUTOTUNE_ATTEMPT" in env and any(str(self.data) in value for value in env.values()):
                found.append(process.pid)
        return found

    @staticmethod
    def alive(process: psutil.Process) -> bool:
        """Whether it still runs; a zombie does not."""
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def stop(self) -> float:
        """SIGTERM; gives the seconds until everything had ended."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        return time.monotonic() - begin


def announced(data: Path, pid: int) -> dict[str, Any] | None:
    """What this very `up` says of itself; a killed one leaves its own words behind."""
    try:
        state: dict[str, Any] = json.loads((data / "run" / "up.json").read_text())
    except FileNotFoundError:
        return None
    return state if state["pid"] == pid else None


@contextmanager
def running(data: Path, executor: str = "local", slots: int = 2) -> Iterator[RunningService]:
    """Start, hand over, stop. Fails with the logs when the service does not come up."""
    argv = [sys.executable, "-m", "api.up", "--data", str(data), "--port", "0", "--executor", executor]
    log = data.parent / f"{data.name}-up.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*argv, "--slots", str(slots)],
            stdout=output,
            stderr=output,
            text=True,
            cwd=data.parent,
        )
    deadline = time.monotonic() + 120
    while (state := announced(data, process.pid)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"the service did not come up: {log.read_text()}")
        time.sleep(0.05)
    service = RunningService(process, data, state)
    try:
        yield service
    finally:
        service.client.close()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
