"""What the database says of attempts, trials and devices: read directly, whether or not the api runs."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple


class End(NamedTuple):
    """How one attempt ended: `measured` or the failure's class, and the whole failure."""

    what: str
    failure: dict[str, Any]


class Records:
    """Reads only."""

    def __init__(self, data: Path) -> None:
        self._database = f"file:{data / 'autotune.db'}?mode=ro"

    def rows(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._database, uri=True, timeout=20)) as db:
            return db.execute(question, values).fetchall()

    def end(self, uid: str) -> End | None:
        """None while the attempt runs."""
        found = self.rows(
            "SELECT a.ended, a.failure, a.attempt, t.attempt, t.outcome FROM attempt a JOIN trial t"
            " ON t.id = a.trial_id WHERE a.uid = ?",
            uid,
        )
        if not found or found[0][0] is None:
            return None
        ended, own, number, last, outcome = found[0]
        if ended in {"measured", "cancelled"}:
            return End(ended, {})
        failure = json.loads(own) if own else json.loads(outcome)["failure"] if number == last and outcome else {}
        return End(failure.get("failure_class", "unknown"), failure)

    def leases(self, uid: str) -> list[int]:
        """Devices that the attempt still has."""
        return [device for (device,) in self.rows("SELECT device FROM device_lease WHERE uid = ?", uid)]

    def lost(self) -> Sequence[str]:
        """Trials in no final state, attempts without an end."""
        open_trials = self.rows(
            "SELECT study_id, number, state FROM trial WHERE state NOT IN ('measured', 'failed', 'cancelled')"
        )
        open_attempts = self.rows("SELECT uid FROM attempt WHERE ended IS NULL")
        return [f"trial {row}" for row in open_trials] + [f"attempt {uid}" for (uid,) in open_attempts]

    def doubled(self) -> Sequence[str]:
        """Trials finished more than once, attempts started more than once, trials with two attempts at a time."""
        told = self.rows("SELECT kind, study_id, trial_number, data FROM event WHERE trial_number IS NOT NULL")
        finished = Counter((study, number) for kind, study, number, _ in told if kind == "trial_finished")
        started = Counter(
            (study, number, json.loads(data)["attempt"])
            for kind, study, number, data in told
            if kind == "trial_started"
        )
        at_once = self.rows(
            "SELECT a.uid FROM attempt a JOIN attempt b ON a.trial_id = b.trial_id AND a.attempt < b.attempt"
            " WHERE a.ended_at IS NULL OR a.ended_at > b.started_at"
        )
        return [f"{key} {n} times" for counts in (finished, started) for key, n in counts.items() if n > 1] + [
            f"{uid} beside its successor" for (uid,) in at_once
        ]

    def trials(self) -> int:
        return int(self.rows("SELECT count(*) FROM trial")[0][0])
