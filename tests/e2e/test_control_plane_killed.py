"""SIGKILL of the control plane in the middle of a study: nothing is lost, nothing is started twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.running_service import RunningService, running


def started_folders(data: Path) -> Counter[str]:
    """How often each attempt was started, by the guard files that a start leaves on its host."""
    return Counter(path.parent.name for path in (data / "attempts").glob("*/started"))


def check_the_record(data: Path, study_id: int) -> None:
    """Every trial finished exactly once, every attempt launched at most once, straight from the database."""
    with sqlite3.connect(data / "autotune.db") as db:
        trials = db.execute("SELECT number, state FROM trial WHERE study_id = ?", (study_id,)).fetchall()
        events = db.execute(
            "SELECT seq, kind, trial_number, data FROM event WHERE study_id = ? ORDER BY seq", (study_id,)
        ).fetchall()
    assert trials
    assert {state for _, state in trials} <= {"measured", "failed"}
    finished = Counter(number for _, kind, number, _ in events if kind == "trial_finished")
    assert finished == Counter({number: 1 for number, _ in trials})
    starts = Counter(
        (number, json.loads(text)["attempt"]) for _, kind, number, text in events if kind == "trial_started"
    )
    assert max(starts.values()) == 1
    assert max(started_folders(data).values()) == 1
    assert [seq for seq, *_ in events] == sorted({seq for seq, *_ in events})


def kill_in_the_middle(service: RunningService, study_id: int, victims: list[str], kills: int) -> None:
    for turn in range(kills):
        service.wait_until(lambda: service.study(study_id)["counts"].get("running", 0) > 0)
        time.sleep(0.4 * turn)
        for victim in victims:
            os.kill(service.pid(victim), signal.SIGKILL)
        seen = len(service.lines(study_id)) if "api" not in victims else 0
        service.wait_until(
            lambda seen=seen: (
                service.study(study_id)["study"]["state"] != "running"  # type: ignore[misc]
                or len(service.lines(study_id)) > seen
            )
        )


@pytest.mark.soak
def test_a_killed_control_plane_loses_nothing_and_starts_nothing_twice(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data) as service:
        study_id = service.create()
        kill_in_the_middle(service, study_id, ["api", "dispatcher"], kills=3)
        study = service.wait_until_finished(study_id)
        assert study["state"] == "done", study
        check_the_record(data, study_id)
        assert service.server_processes() == []


def test_a_killed_up_is_followed_by_another_that_goes_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(data) as service:
        study_id = service.create()
        service.wait_until(lambda: service.study(study_id)["counts"].get("measured", 0) > 0)
        service.process.kill()
        service.process.wait()
    with running(data) as service:
        assert service.wait_until_finished(study_id)["state"] == "done"
        check_the_record(data, study_id)
        assert service.server_processes() == []
