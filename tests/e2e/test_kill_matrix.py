"""Every victim of the kill matrix once, in a real service: `make soak-kill` does the same at length."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soak.kill import COUNTS, p95, report, soak
from tests.soak.kill_run import deck
from tests.soak.verdict import Kill, Limits, rights
from tests.soak.victims import Moment, Victim

TARGETS = (
    (Victim.PARENT, Moment.LOADING),
    (Victim.WORKER, Moment.MEASURING),
    (Victim.API, Moment.READY),
    (Victim.CHILD, Moment.WARM_UP),
    (Victim.SUPERVISOR, Moment.REPORTING),
    (Victim.DISPATCHER, Moment.LAUNCHING),
    (Victim.RAYLET, Moment.MEASURING),
)
PATIENT = Limits(clean_s=90, end_s=200, devices_s=200)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whatever_is_killed_nothing_is_left_lost_or_misnamed(tmp_path: Path) -> None:
    figures = soak(tmp_path, TARGETS, random.Random(1), PATIENT, None)
    assert figures["violations"] == []
    assert figures["kills"] == len(TARGETS)
    assert set(figures["by_victim"]) == {str(victim) for victim in Victim}
    assert figures["trials"] >= 1


def test_the_deck_has_every_pair_equally_often() -> None:
    dealt = deck(84, random.Random(3))
    assert len(set(dealt)) == 42
    assert all(dealt.count(pair) == 2 for pair in dealt)
    assert len(deck(5, random.Random(3))) == 5


def test_what_is_wrong_is_counted_and_told() -> None:
    kills = [
        Kill(1, Victim.WORKER, Moment.READY, "u-1-1", 7, rights(Victim.WORKER, Moment.READY, False), end="crash"),
        Kill(2, Victim.API, Moment.READY, "u-2-1", 8, rights(Victim.API, Moment.READY, True), end="measured"),
    ]
    kills[0].violations["wrong_class"] = "crash instead of infrastructure"
    figures = report(kills, 2, {"lost": ["trial 9"], "doubled": []})
    assert [figures[count] for count in COUNTS] == [1, 0, 0, 1, 0]
    assert figures["ends"] == {"api: measured": 1, "worker: crash": 1}
    assert len(figures["violations"]) == 2


def test_a_measurement_that_was_complete_at_the_kill_may_count() -> None:
    assert rights(Victim.PARENT, Moment.MEASURING, False) == ["crash"]
    assert rights(Victim.PARENT, Moment.MEASURING, True) == ["crash", "measured"]
    assert rights(Victim.DISPATCHER, Moment.LAUNCHING, False) == ["measured"]
    assert p95([]) is None
    assert p95([float(n) for n in range(1, 101)]) == 95
