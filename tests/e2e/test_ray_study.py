"""A whole study through Ray: the path that users run by default."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.running_service import running
from tests.e2e.test_control_plane_killed import check_the_record


@pytest.mark.ray
@pytest.mark.slow
def test_a_study_runs_through_ray_and_survives_its_dispatcher(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data, executor="ray") as service:
        study_id = service.create(budget={"trials": 9, "wall_time_s": 600})
        service.wait_until(lambda: service.study(study_id)["counts"].get("running", 0) > 0)
        os.kill(service.pid("dispatcher"), signal.SIGKILL)
        study = service.wait_until_finished(study_id, 160)
        assert study["state"] == "done", study
        check_the_record(data, study_id)
        assert service.server_processes() == []
        assert service.stop() < 10
