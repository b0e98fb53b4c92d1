"""Two trials at a time on one host: cards of their own, and all of them given back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running_service import RunningService, running
from workers.devices.held_memory import hold
from workers.devices.simulated import registry


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
