"""Two trials at a time on one host: cards of their own, and all of them given back; unless one is not free again."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.storage.sql_store import open_store
from tests.e2e.running_service import RunningService, running
from workers.devices.held_memory import hold
from workers.devices.simulated import IDLE_MB, registry


def devices(service: RunningService) -> list[dict[str, Any]]:
    """Those of the one host."""
    hosts = service.client.get("/api/v1/hosts").json()
    found: list[dict[str, Any]] = hosts[0]["devices"] if hosts else []
    return found


@pytest.mark.slow
def test_trials_side_by_side_have_cards_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "host.yaml").write_text("devices: simulated\n")
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        hold(registry(tmp_path / "data" / "attempts"), [1], 30.0, stranger.pid)
        with running(tmp_path / "data") as service:
            study_id = service.create()
            service.wait_until(lambda: sum(d["lease"] is not None for d in devices(service)) == 4)
            leased = {d["index"]: d["lease"]["attempt"] for d in devices(service) if d["lease"]}
            assert leased.keys() <= set(range(2, 16)), "a stranger holds memory of the first card"
            measured = {"measured", "failed"}
            service.wait_until(lambda: sum(t["state"] in measured for t in service.lines(study_id)) >= 2)
            service.client.post(f"/api/v1/studies/{study_id}/cancel")
            service.wait_until(lambda: all(d["lease"] is None for d in devices(service)))
            assert all(d["quarantine"] is None for d in devices(service))
            had = {t["provenance"]["devices"]["server"] for t in service.trials(study_id) if t["provenance"]}
            assert had <= {"2,3", "4,5"}
            assert had
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.slow
def test_a_device_on_which_something_is_left_gets_no_trial_until_it_is_released(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "host.yaml").write_text("devices: simulated\nsettle_s: 1\n")
    leftover = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with running(data) as service:
            service.create(parallel_trials=1)
            service.wait_until(lambda: any(d["lease"] for d in devices(service)))
            first = next(d["lease"]["attempt"] for d in devices(service) if d["lease"])
            hold(registry(data / "attempts"), [0], 30.0, leftover.pid)
            service.wait_until(lambda: devices(service)[0]["quarantine"] is not None)
            aside = devices(service)[0]["quarantine"]
            assert aside["attempt"] == first
            assert f"MB in use 1 s after attempt {first} had ended, {IDLE_MB} MB before it" in aside["reason"]
            service.wait_until(lambda: any(d["lease"] and d["lease"]["attempt"] != first for d in devices(service)))
            having = [d["index"] for d in devices(service) if d["lease"] and d["lease"]["attempt"] != first]
            assert set(having) <= {2, 3}
            leftover.kill()
            leftover.wait()
            words = ["hosts", "release", socket.gethostname(), "0", "--url", service.url]
            done = subprocess.run(
                [sys.executable, "-m", "autotune.cli.main", *words], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("device 0 of ")
            service.wait_until(lambda: bool(devices(service)[0]["free"] or devices(service)[0]["lease"]))
            assert kinds(data) == ["device_quarantined", "device_released"]
    finally:
        leftover.kill()
        leftover.wait()


def kinds(data: Path) -> list[str]:
    """The events about devices, in order."""
    store = open_store(f"sqlite:///{data / 'autotune.db'}")
    try:
        return [event.kind for event in store.events(0) if event.kind.startswith("device_")]
    finally:
        store.close()
