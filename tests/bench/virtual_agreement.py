"""Whether the two forms of a simulated endpoint agree: the same candidate under the same load and seed.

Each case runs once with a real server process under the real load process, and once on virtual time. TPOT should
agree within 1 %, TTFT within 2 %; what the wall clock adds on a busy machine shows as a positive difference. Writes
`out/bench/virtual_agreement.json` and prints its rows, one a line. `--quick` takes one case.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.launch_plan import LaunchPlan, RolePlan
from autotune.domain.measurement import LevelMeasurement
from autotune.domain.workload import Arrivals, LoadLevel, Workload
from tests import builders
from workers.attempt import run_attempt
from workers.attempt_files import AttemptFiles
from workers.host_templates import BUILT_IN, HostTemplates
from workers.simulator.virtual.trial import run_trial

OUT = Path("out/bench/virtual_agreement.json")
TPOT_PCT, TTFT_PCT = 1.0, 2.0
SEED = {"AUTOTUNE_SIM_SEED": "agreement"}
CLOSED = (
    LoadLevel(concurrency=1, requests=8),
    LoadLevel(concurrency=4, requests=24),
    LoadLevel(concurrency=8, requests=40),
)
OPEN = (
    LoadLevel(concurrency=32, requests=40, rate_per_s=2.0, arrivals=Arrivals.CONSTANT),
    LoadLevel(concurrency=6, requests=40, rate_per_s=3.0),
)
PLAIN = '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,4,8,16,32]}'
DRAFTED = '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[5,20,40]}'
DRAFTS = '{"method":"mtp","num_speculative_tokens":4}'
SERVER = ("--tensor-parallel-size", "2", "--max-num-seqs", "32", "--max-model-len", "4096")


def workload(levels: Sequence[LoadLevel], **changes: Any) -> Workload:
    fields = {"prompt_tokens": 1024, "output_tokens": 128, "levels": tuple(levels), "request_timeout_s": 120.0}
    return Workload(**{**fields, **changes})


def cases() -> Iterator[tuple[str, TrialJob]]:
    """Name and job of each case; the templates are made by `templates`."""
    card = builders.deployment(template="agreement-910c", model="Qwen3.5-35B-A3B", devices=2, tensor_parallel=2)

    def single(name: str, load: Workload, *argv: str) -> tuple[str, TrialJob]:
        plan = LaunchPlan(roles={"server": RolePlan(argv=(*SERVER, *argv))})
        return name, builders.job(name, deployment=card, plan=plan, workload=load, seed=7, study_seed=7)

    yield single("plain", workload(CLOSED), "--compilation-config", PLAIN)
    yield single("drafts", workload(CLOSED), "--compilation-config", DRAFTED, "--speculative-config", DRAFTS)
    shared = workload(OPEN, shared_prefix_tokens=768)
    yield single("open-shared", shared, "--compilation-config", PLAIN, "--enable-prompt-tokens-details")
    both = ("--tp-size", "8", "--context-length", "16384")
    roles = {
        "router": RolePlan(argv=("--pd-disaggregation",)),
        "prefill": RolePlan(argv=(*both, "--disaggregation-mode", "prefill")),
        "decode": RolePlan(argv=(*both, "--disaggregation-mode", "decode", "--enable-cache-report")),
    }
    host = builders.deployment(template="agreement-950dt", model="DeepSeek-MoE", devices=16, tensor_parallel=8)
    load = workload(
        [LoadLevel(concurrency=4, requests=24), LoadLevel(concurrency=12, requests=32, rate_per_s=3.0)],
        prompt_tokens=4096,
        shared_prefix_tokens=3072,
        output_tokens=64,
    )
    plan = LaunchPlan(roles=roles)
    yield "prefill-decode", builders.job("pd", deployment=host, plan=plan, workload=load, seed=7, study_seed=7)


def templates(folder: Path) -> HostTemplates:
    """The built-in simulated templates with a seed, so that both forms draw the same noise."""
    folder.mkdir()
    for name, base in (("agreement-910c", "simulated-910c"), ("agreement-950dt", "simulated-950dt-pd")):
        content = yaml.safe_load((BUILT_IN / f"{base}.yaml").read_text(encoding="utf-8"))
        for role in content["roles"].values():
            role["env"] = {**role.get("env", {}), **SEED}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**content, "name": name}, sort_keys=False))
    return HostTemplates(folder)


def compare(name: str, job: TrialJob, known: HostTemplates, root: Path) -> Iterator[dict[str, Any]]:
    """One row a level."""
    wall = levels(run_attempt(job, root / "wall", known))
    files = AttemptFiles(root / "virtual", job.uid)
    files.create()
    virtual = levels(run_trial(job, files, known))
    for level, real in wall.items():
        other = virtual[level]
        row: dict[str, Any] = {"case": name, "level": level}
        for metric, limit in (("tpot_ms", TPOT_PCT), ("ttft_ms", TTFT_PCT), ("e2e_ms", TPOT_PCT)):
            one, two = mean(real, metric), mean(other, metric)
            row[f"{metric}_wall"], row[f"{metric}_virtual"] = round(one, 3), round(two, 3)
            row[f"{metric}_error_pct"] = round(100 * (two / one - 1), 2)
            row[f"{metric}_agrees"] = abs(two / one - 1) * 100 <= limit
        row["uncached_tokens"] = [real.uncached_tokens_mean, other.uncached_tokens_mean]
        row["in_flight_mean"] = [round(level_.in_flight_mean or 0.0, 2) for level_ in (real, other)]
        yield row


def levels(outcome: TrialOutcome) -> dict[str, LevelMeasurement]:
    if outcome.measurement is None:
        raise SystemExit(f"{outcome.uid} was not measured: {outcome.failure}")
    return outcome.measurement.levels


def mean(level: LevelMeasurement, metric: str) -> float:
    quantiles = getattr(level, metric)
    return float(quantiles.mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", help="one case by its name")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="autotune-agreement-") as folder:
        known = templates(Path(folder) / "templates")
        for name, job in cases():
            if asked.case not in (None, name):
                continue
            for row in compare(name, job, known, Path(folder)):
                rows.append(row)
                sys.stdout.write(json.dumps(row) + "\n")
                sys.stdout.flush()
            if asked.quick:
                break
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"quick": asked.quick, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
