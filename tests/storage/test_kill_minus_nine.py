"""What the store said it had stored is there, whenever its process is killed."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.domain.trial import TrialState
from autotune.storage.sql_store import open_store
from tests.builders import new_trial, space, study_spec

AT_LEAST = {
    "added": set(TrialState),
    "started": {TrialState.RUNNING, TrialState.MEASURED},
    "finished": {TrialState.MEASURED},
}


@pytest.mark.parametrize("seed", range(3))
def test_acknowledged_commits_survive(url: str, tmp_path: Path, seed: int) -> None:
    store = open_store(url)
    study_id = store.create_study(study_spec(), space()).id
    store.close()
    dice = random.Random(seed)
    command = [sys.executable, "-m", "tests.storage.commit_until_killed", url, str(study_id)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(dice.randint(1, 90))]
        time.sleep(dice.uniform(0, 0.02))  # anywhere between two acknowledgements
        process.kill()
        lines += process.stdout.readlines()
    assert process.returncode == -9, lines[-1:]

    store = open_store(url)
    trials = store.trials(study_id).items
    for line in lines:
        step, number = line.split()
        assert trials[int(number)].state in AT_LEAST[step]
    events = store.events(0, limit=1000)
    assert [e.seq for e in events] == list(range(1, store.last_event() + 1))
    told: dict[int | None, list[str]] = {}
    for event in events[1:]:
        told.setdefault(event.trial_number, []).append(event.data["state"])
    assert {number: states[-1] for number, states in told.items()} == {t.number: t.state for t in trials}
    assert all(a < b for a, b in pairwise(t.number for t in trials))
    assert store.add_trial(study_id, new_trial()).number == len(trials)
    store.close()
    connection = sqlite3.connect(tmp_path / "autotune.db")
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
