"""What a trial on virtual time costs, and a whole study of them.

* `trial`: processor time of one trial with three levels (40 / 80 / 80 requests of 1024 / 512 tokens at 1, 4 and 8
  streams) in this process, boot and judgement included: the median of several, without the first.
* `study`: a study of 120 trials through the whole service (`autotune up --executor virtual`), from its creation to
  its end, in s of wall clock.

Prints one row of JSON each, and writes `out/bench/virtual_speed.json`. `--quick` leaves the study out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.domain.job import TrialJob
from autotune.domain.launch_plan import LaunchPlan, RolePlan
from autotune.domain.workload import LoadLevel, Workload
from tests import builders
from tests.e2e.running_service import running
from workers.attempt_files import AttemptFiles
from workers.host_templates import HostTemplates
from workers.simulator.virtual.trial import run_trial

OUT = Path("out/bench/virtual_speed.json")
REPEATS = 9
LIMIT_MS = 50.0
TRIALS = 120
WORKLOAD = Workload(
    prompt_tokens=1024,
    output_tokens=512,
    levels=(
        LoadLevel(concurrency=1, requests=40),
        LoadLevel(concurrency=4, requests=80),
        LoadLevel(concurrency=8, requests=80),
    ),
    warmup_requests=2,
)
GRAPHS = '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[%s]}'
COMMON = ("--tensor-parallel-size", "2", "--max-num-seqs", "16", "--max-model-len", "4096", "--compilation-config")
CANDIDATES = {
    "plain": (*COMMON, GRAPHS % "1,4,8"),
    "drafts": (
        *(*COMMON, GRAPHS % "5,20,40"),
        *("--speculative-config", '{"method":"mtp","num_speculative_tokens":4}'),
    ),
}


def job(name: str) -> TrialJob:
    deployment = builders.deployment(model="Qwen3.5-35B-A3B", devices=2, tensor_parallel=2)
    plan = LaunchPlan(roles={"server": RolePlan(argv=CANDIDATES[name])})
    return builders.job(f"speed-{name}", deployment=deployment, plan=plan, workload=WORKLOAD)


def trial(name: str) -> dict[str, Any]:
    """Processor time in ms."""
    spent: list[float] = []
    simulated_s = 0.0
    with tempfile.TemporaryDirectory(prefix="autotune-speed-") as folder:
        files = AttemptFiles(Path(folder), job(name).uid)
        files.create()
        for _ in range(REPEATS + 1):
            begun = time.process_time()
            outcome = run_trial(job(name), files, HostTemplates())
            spent.append((time.process_time() - begun) * 1e3)
            assert outcome.measurement is not None, outcome.failure
            simulated_s = sum(outcome.durations_s.values())
    median = statistics.median(spent[1:])
    return {
        "row": "trial",
        "candidate": name,
        "cpu_ms_p50": round(median, 1),
        "cpu_ms_min": round(min(spent[1:]), 1),
        "cpu_ms_first": round(spent[0], 1),
        "limit_ms": LIMIT_MS,
        "holds": median <= LIMIT_MS,
        "simulated_s": round(simulated_s, 1),
    }


def study() -> dict[str, Any]:
    """A study with its gate, recipes, search and confirmation."""
    changes = {
        "workload": WORKLOAD.model_dump(mode="json"),
        "budget": {"trials": TRIALS, "wall_time_s": 1800},
        "parallel_trials": 1,
        "confirmation": {"finalists": 3, "rounds": 3},
    }
    with (
        tempfile.TemporaryDirectory(prefix="autotune-speed-") as folder,
        running(Path(folder) / "data", executor="virtual", slots=1) as service,
    ):
        begun = time.monotonic()
        study_id = service.create(**changes)
        done = service.wait_until_finished(study_id, 600)
        seconds = time.monotonic() - begun
        trials = service.lines(study_id)
    return {
        "row": "study",
        "state": done["state"],
        "trials": len(trials),
        "measured": sum(line["state"] == "measured" for line in trials),
        "wall_s": round(seconds, 1),
        "ms_a_trial": round(seconds / len(trials) * 1e3, 1),
    }


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    yield from map(trial, CANDIDATES)
    if not quick:
        yield study()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    found = []
    for row in rows(quick):
        found.append(row)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"quick": quick, "rows": found}, indent=2))


if __name__ == "__main__":
    main()
