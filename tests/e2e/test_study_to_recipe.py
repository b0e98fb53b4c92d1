"""From a study file to a launch script that starts a server, with real processes all the way."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from tests.e2e.running_service import SMALL_STUDY, RunningService, running

# Long enough outputs and rounds that the gain of drafts stands out from the noise of a busy machine.
PROVABLE_STUDY = {
    **SMALL_STUDY,
    "workload": {**SMALL_STUDY["workload"], "output_tokens": 32},
    "budget": {"trials": 15, "wall_time_s": 600},
    "confirmation": {"finalists": 1, "rounds": 3},
}
AUTOTUNE = str(Path(sys.executable).with_name("autotune"))


def cli(service: RunningService, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "AUTOTUNE_URL": service.url}
    return subprocess.run([AUTOTUNE, *argv], env=env, capture_output=True, text=True, timeout=170, check=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str, seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/v1/models", trust_env=False).status_code == 200:
                return True
        except httpx.TransportError:
            time.sleep(0.1)
    return False


@pytest.mark.slow
def test_a_user_tunes_and_exports_with_the_command_line(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump(PROVABLE_STUDY))
    with running(tmp_path / "data") as service:
        created = cli(service, "study", "create", str(study), "--json")
        assert created.returncode == 0, created.stderr
        study_id = str(json.loads(created.stdout)["id"])

        watched = cli(service, "watch", study_id)
        assert watched.returncode == 0, watched.stderr
        assert "baseline" in watched.stdout

        trials = service.trials(int(study_id))
        assert [t["number"] for t in trials] == list(range(len(trials)))
        assert {t["state"] for t in trials} <= {"measured", "failed"}
        assert {t["phase"] for t in trials} == {"gate", "recipes", "search", "confirm"}
        for trial in trials:
            assert (trial["measurement"] is None) == (trial["state"] == "failed")
            if trial["failure"]:
                assert trial["failure"]["log_tail"]

        recipe = json.loads(cli(service, "export", study_id, "--format", "json").stdout)
        assert recipe["confirmed"] is True
        assert recipe["gain_pct"]["c1"]["low"] > 20

        script = tmp_path / "launch.sh"
        assert cli(service, "export", study_id, "--format", "sh", "--output", str(script)).returncode == 0
    checked = subprocess.run(
        [Path(sys.executable).with_name("shellcheck"), script], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
    port = free_port()
    env = {"PATH": os.defpath, "PORT": str(port), "RUN_DIR": str(tmp_path / "run")}
    server = subprocess.Popen(["bash", str(script)], env=env, start_new_session=True)
    try:
        assert answers(f"http://127.0.0.1:{port}")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(10)


def test_stopping_leaves_nothing_even_with_a_browser_connected(tmp_path: Path) -> None:
    with running(tmp_path / "data") as service:
        study_id = service.create()
        service.wait_until(lambda: bool(service.server_processes()))
        tree = psutil.Process(service.process.pid).children(recursive=True)
        with service.client.stream("GET", "/api/v1/events") as events:
            assert events.status_code == 200
            assert service.stop() < 10
        assert service.server_processes() == []
        assert [process for process in tree if service.alive(process)] == []
    # Stopped in the middle, the study goes on where it was.
    with running(tmp_path / "data") as service:
        assert service.wait_until_finished(study_id)["state"] == "done"
