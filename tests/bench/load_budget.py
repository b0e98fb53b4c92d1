"""How many requests a time per token known to 1 % takes on the simulated 910C, beside the fixed 40 / 80 / 80.

The published protocol sends 40, 80 and 80 requests of 1024 / 512 tokens at 1, 4 and 8 streams, whatever the server is
like. Here each level ends as soon as the interval of its mean time per token is narrow enough, at twice the fixed
number at the latest. Several launches of two candidates on virtual time; each launch has noise of its own. What the
stopped level says is compared with the mean of a ten times longer one of the same launch. Requests in flight when a
level stops are sent to their end, and counted.
Writes `out/bench/load_budget.json`; ends with 1 where plain decoding takes more than a third.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from autotune.domain.stop_rule import Decision
from autotune.domain.workload import LoadLevel, Workload
from tests.bench.virtual_speed import CANDIDATES
from tests.simulator.server_process import SYSTEM
from workers.load.spec import LoadSpec
from workers.simulator.boot import read_command
from workers.simulator.serving.batching import Batcher
from workers.simulator.serving.noise import launch_noise
from workers.simulator.start.machine import VirtualMachine
from workers.simulator.virtual.deployment import SingleServer
from workers.simulator.virtual.load import VirtualLoad
from workers.simulator.virtual.server import VirtualServer

OUT = Path("out/bench/load_budget.json")
PROTOCOL = ((1, 40), (4, 80), (8, 80))
LONG = 10
GOAL = 1 / 3
PRECISION = 0.01
MS = 1e3


def launch(words: tuple[str, ...], seed: int) -> SingleServer:
    """A server that has just started."""
    log = io.StringIO()
    booted = read_command(("serve", str(SYSTEM), *words), {}, log).start([], VirtualMachine())
    noise = launch_noise({}, f"budget-{seed}")
    return SingleServer(VirtualServer("server", Batcher(booted.cost, booted.memory, noise), None))


def run(words: tuple[str, ...], seed: int, offered: LoadLevel) -> tuple[Decision | None, list[float]]:
    """One level of one launch: why it ended, and the time per token of each request."""
    workload = Workload(prompt_tokens=1024, output_tokens=512, levels=(offered,), warmup_requests=20)
    spec = LoadSpec(base_url="http://127.0.0.1:1", model="sim", workload=workload, seed=seed)
    load = VirtualLoad(launch(words, seed), spec, lambda: False)
    load.warm_up()
    samples = load.level(offered)
    return load.stopped.get(offered.name), [s.tpot_ms for s in samples if s.tpot_ms is not None]


def level(words: tuple[str, ...], seed: int, streams: int, fixed: int) -> tuple[Decision, float, int]:
    """Where it stopped, how far its mean then was from that of the long run, and how many requests were sent."""
    long = LoadLevel(concurrency=streams, requests=LONG * fixed, stagger=True)
    short = LoadLevel(concurrency=streams, requests=2 * fixed, stagger=True, precision=PRECISION)
    _, paces = run(words, seed, long)
    decision, sent = run(words, seed, short)
    assert decision is not None
    assert decision.mean_ms is not None
    return decision, decision.mean_ms / statistics.geometric_mean(paces) - 1, len(sent)


def rows(launches: int) -> list[dict[str, Any]]:
    found = []
    for name, words in CANDIDATES.items():
        for streams, fixed in PROTOCOL:
            ends = [level(words, seed, streams, fixed) for seed in range(launches)]
            sent = [count for _, _, count in ends]
            found.append(
                {
                    "candidate": name,
                    "streams": streams,
                    "fixed": fixed,
                    "requests_mean": statistics.fmean(decision.requests for decision, _, _ in ends),
                    "sent_mean": statistics.fmean(sent),
                    "sent_most": max(sent),
                    "precise": sum(decision.verdict == "precise" for decision, _, _ in ends) / launches,
                    "error_worst_pct": 100 * max(abs(error) for _, error, _ in ends),
                    "within": sum(abs(error) <= PRECISION for _, error, _ in ends) / launches,
                }
            )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 launches, not 20")
    launches = 3 if parser.parse_args().quick else 20
    found = rows(launches)
    lines = ["candidate  streams  fixed  sent (mean, most)   precise  within 1 %  worst error %"]
    lines += [
        f"{r['candidate']:9}  {r['streams']:7}  {r['fixed']:5}  {r['sent_mean']:11.1f}, {r['sent_most']:4}"
        f"  {r['precise']:7.0%}  {r['within']:10.0%}  {r['error_worst_pct']:13.2f}"
        for r in found
    ]
    ratios = {
        name: sum(r["sent_mean"] for r in found if r["candidate"] == name) / sum(n for _, n in PROTOCOL)
        for name in CANDIDATES
    }
    lines += [f"{name}: {ratio:.2f} of the fixed number" for name, ratio in ratios.items()]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"launches": launches, "rows": found, "ratios": ratios}, indent=1))
    sys.stdout.write("\n".join([*lines, f"written to {OUT}", ""]))
    return int(ratios["plain"] > GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
