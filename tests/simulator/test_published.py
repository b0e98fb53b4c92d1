"""The simulated endpoints keep what they claim of the published figures."""

from __future__ import annotations

import pytest

from tests.bench.published import Row
from tests.bench.simulator import LIMIT_PCT, all_rows

ROWS = all_rows()


CLAIMED = [row for row in ROWS if row.kind != "listed"]


@pytest.mark.parametrize("row", CLAIMED, ids=lambda row: f"{row.report} {row.row}")
def test_a_claimed_figure_is_met(row: Row) -> None:
    assert row.simulated == pytest.approx(row.published, rel=LIMIT_PCT[row.report] / 100)


def test_what_is_not_claimed_has_its_reason() -> None:
    assert all(row.note for row in ROWS if row.kind == "listed")
    assert {row.report for row in ROWS} == {"A", "B", "C"}


def test_littles_law_holds_of_the_complete_run() -> None:
    """Requests in flight are throughput times the time that one takes: 27.28 = 192 / 110.3 s x 15.67 s."""
    run = {row.row.removeprefix("complete run: "): row.simulated for row in ROWS if row.report == "C"}
    requests_per_s = run["output"] / 1024
    assert run["in flight, mean"] == pytest.approx(requests_per_s * run["mean E2E"], rel=0.005)
