"""What the control plane costs: time between trials, and its share of a trial's time.

A study on simulated servers, one trial at a time. From the stored trials:

* gap: from one trial's end being stored to the next trial being dispatched (propose, commit, submit);
* share: the part of a trial's time, dispatch to stored end, that none of the attempt's own phases explains
  (starting the worker, carrying job and outcome, storing).

Writes `out/bench/overhead.json`. `--quick` leaves Ray out and runs fewer trials.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.e2e.running_service import running

OUT = Path("out/bench/overhead.json")


def measure(executor: str, trials: int) -> dict[str, Any]:
    """One study; figures in ms and percent."""
    with (
        tempfile.TemporaryDirectory(prefix="autotune-bench-") as folder,
        running(Path(folder) / "data", executor=executor, slots=1) as service,
    ):
        study_id = service.create(parallel_trials=1, budget={"trials": trials, "wall_time_s": 1800})
        service.wait_until_finished(study_id, 900)
        stored = service.trials(study_id)
    return {"executor": executor, **figures(stored)}


def figures(trials: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Gaps between all trials in the order of their numbers; the other figures of the measured ones."""
    gaps = [(at(b["started_at"]) - at(a["finished_at"])).total_seconds() * 1000 for a, b in pairwise(trials)]
    done = [t for t in trials if t["state"] == "measured"]
    whole = [(at(t["finished_at"]) - at(t["started_at"])).total_seconds() * 1000 for t in done]
    phases = [sum(t["durations_s"].values()) * 1000 for t in done]
    extra = [w - p for w, p in zip(whole, phases, strict=True)]
    return {
        "trials": len(done),
        "trial_ms_p50": round(statistics.median(whole), 1),
        "gap_ms_p50": round(statistics.median(gaps), 1),
        "gap_ms_max": round(max(gaps), 1),
        "carry_ms_p50": round(statistics.median(extra), 1),
        "carry_ms_max": round(max(extra), 1),
        "share_pct": round(100 * (sum(extra) + sum(gaps)) / (sum(whole) + sum(gaps)), 1),
    }


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    plan = [("local", 8)] if quick else [("local", 20), ("ray", 20)]
    rows = [measure(executor, trials) for executor, trials in plan]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"quick": quick, "rows": rows}, indent=2))
    lines = ["executor  trials  trial p50  gap p50  gap max  carry p50  carry max  share"]
    lines += [
        f"{r['executor']:8}  {r['trials']:6}  {r['trial_ms_p50']:6.0f} ms  {r['gap_ms_p50']:4.0f} ms  "
        f"{r['gap_ms_max']:4.0f} ms  {r['carry_ms_p50']:6.0f} ms  {r['carry_ms_max']:6.0f} ms  {r['share_pct']:4.1f} %"
        for r in rows
    ]
    sys.stdout.write("\n".join([*lines, f"written to {OUT}", ""]))


if __name__ == "__main__":
    main()
