"""A study of prefill, decode and router through Ray: three real processes a trial, and an export that starts three."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.running_service import RunningService, running
from tests.e2e.test_control_plane_killed import check_the_record

ROLES = ["router", "prefill", "decode"]  # in the order of their ports
CRASHING = "report-c-dispatch-35"  # decode ends at graph capture
STUDY: dict[str, Any] = {
    "name": "three-roles",
    "space": "sglang-ascend-950dt-pd",
    "deployment": {
        "template": "simulated-950dt-pd",
        "model": "DeepSeek-MoE",
        "devices": 16,
        "tensor_parallel": 8,
        "max_model_len": 8192,
        "model_facts": {"hidden_size": 4096, "experts": 256, "experts_per_token": 6},
    },
    "workload": {
        "prompt_tokens": 256,
        "output_tokens": 12,
        "levels": [{"concurrency": 2, "requests": 4}],
        "warmup_requests": 1,
        "request_timeout_s": 60,
    },
    "sla": ["error_rate == 0"],
    # Two launches of the baseline, one of each recipe, and two of finalist and baseline each: no room for a search.
    "budget": {"trials": 8, "wall_time_s": 1800},
    "seed": 5,
    "gate_launches": 2,
    "recipes": ["report-c-tuned", CRASHING],
    "confirmation": {"finalists": 1, "rounds": 2},
}


def living(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended; one that nobody has waited for yet has."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def eventually(what: str, seconds: float, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)


def consecutive_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    for _ in range(100):
        with ExitStack() as held:
            first = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return int(first)
    raise AssertionError("no ports in a row are free")


@contextmanager
def exported_servers(script: Path, port: int, run_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The script as a user runs it."""
    env = {"PATH": os.defpath, "PORT": str(port), "RUN_DIR": str(run_dir)}
    with (script.parent / "exported.log").open("wb") as log:
        servers = subprocess.Popen(["bash", str(script)], env=env, start_new_session=True, stdout=log, stderr=log)
    try:
        yield servers
    finally:
        if servers.poll() is None:
            os.killpg(servers.pid, signal.SIGKILL)
            servers.wait()


def answers(url: str, words: str) -> bool:
    """Whether it answers with status 200 and these words."""
    try:
        answer = httpx.get(url, trust_env=False, timeout=20)
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and words in answer.text


def check_the_crash(service: RunningService, study_id: int) -> None:
    """The trial whose decode crashes says so, and what follows from it."""
    (crashed,) = [trial for trial in service.trials(study_id) if trial["state"] == "failed"]
    assert (crashed["label"], crashed["attempt"]) == (CRASHING, 1)
    failure = crashed["failure"]
    assert failure["summary"].startswith("decode ended with")
    assert failure["phase"] == "ready"
    assert "num_max_dispatch_tokens_per_rank >= x.size(0)" in failure["decisive_line"]
    context = crashed["context"]
    assert failure["decisive_line"] in context["lines"][context["decisive"]]
    assert crashed["policy"]["consequence"] == "launched_again"
    assert [attempt["ended"] for attempt in crashed["attempts"]] == ["failed"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(480)  # 40 s as a rule; two crowded cores may take several times that
def test_a_study_of_three_roles_names_the_role_that_crashed_and_exports_all_three(tmp_path: Path) -> None:
    data = tmp_path / "data"
    script = tmp_path / "launch.sh"
    with running(data, executor="ray", slots=1) as service:
        study_id = service.create(**STUDY)
        study = service.wait_until_finished(study_id, 240)
        assert study["state"] == "done", study
        check_the_record(data, study_id)
        check_the_crash(service, study_id)
        measured = [trial for trial in service.trials(study_id) if trial["state"] == "measured"]
        assert {"gate", "recipes"} <= {trial["phase"] for trial in measured}
        assert all(list(trial["provenance"]["roles"]) == ROLES for trial in measured)
        assert service.server_processes() == []
        script.write_text(service.client.get(f"/api/v1/studies/{study_id}/export", params={"format": "sh"}).text)
        service.stop()
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if shellcheck.exists():
        checked = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout
    port, run_dir = consecutive_ports(len(ROLES)), tmp_path / "run"
    with exported_servers(script, port, run_dir) as servers:
        for n, role in enumerate(ROLES):
            health = f"http://127.0.0.1:{port + n}/health"
            eventually(f"{role} is healthy", 90, partial(answers, health, ""))
        eventually("the router serves", 60, partial(answers, f"http://127.0.0.1:{port}/v1/models", "DeepSeek-MoE"))
        assert servers.poll() is None
        started = psutil.Process(servers.pid).children(recursive=True)
        assert len(living(started)) >= len(ROLES)
        servers.terminate()
        servers.wait(60)
        eventually("nothing of the export runs", 60, lambda: not living(started))
