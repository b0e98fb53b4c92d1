"""What rules, conditions and derived settings are worth: random draws on the simulated 910C.

Each draw is launched (configuration, memory, start checks; no process) twice: as drawn, without any of the
space's knowledge, and settled by it. Prints and writes to `out/bench/space.json`:

* the share that crashes without and with the knowledge, by cause;
* draws that run well as drawn and are refused by a rule: there must be none.

A draw that the rules repair counts as what the repaired candidate comes to.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.domain.candidate import Candidate
from autotune.domain.deployment import Deployment, facts
from autotune.domain.draws import draw
from autotune.domain.instance import instantiate
from autotune.domain.launch_plan import RolePlan, render
from autotune.domain.space import SearchSpace
from autotune.domain.stack import StackVersions
from autotune.domain.workload import LoadLevel, Workload
from autotune.errors import InvalidCandidate
from search_spaces.catalog import SpaceCatalog
from workers.simulator.faults import ConfigRejected, EngineFailed
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.system import load_system
from workers.simulator.start.start_up import start_engine
from workers.simulator.vllm.configure import configure
from workers.simulator.vllm.flags import parse_flags
from workers.simulator.vllm.narration import VllmNarrator
from workers.simulator.vllm.server_log import ServerLog

OUT = Path("out/bench/space.json")
ROOT = Path(__file__).parents[2]
SYSTEM = load_system(ROOT / "workers/simulator/systems/qwen3.5-35b-a3b-910c.yaml")
STACK = StackVersions(engine="0.22.0", cann="9.0.0", chip="910C")
RUNS = "runs"
REFUSED = "refused by a rule"


CAUSES = {
    "exceeds available Mamba cache blocks": "too many sequences for the KV cache",
    "NPU out of memory": "device out of memory",
    "No available memory": "no memory for the KV cache",
    "KV cache is needed": "no memory for one request",
    "TASK_QUEUE_ENABLE": "TASK_QUEUE_ENABLE=2 with graphs",
    "LOCAL_WORLD_SIZE": "static kernels without LOCAL_WORLD_SIZE",
    "MatmulAllReduce": "operator of matmul_allreduce",
    "MatmulReduceScatter": "operator of flashcomm",
}


def study_facts() -> Mapping[str, Any]:
    """Report A's deployment and load."""
    return facts(
        Deployment(
            template="simulated-910c", model="Qwen3.5-35B-A3B", devices=2, tensor_parallel=2, max_model_len=4096
        ),
        Workload(
            prompt_tokens=1024,
            output_tokens=512,
            levels=tuple(LoadLevel(concurrency=c, requests=80) for c in (1, 4, 8)),
        ),
    )


def fate(role: RolePlan) -> str:
    """`runs`, or why the start ends."""
    try:
        flags = parse_flags(["serve", "x", *role.argv])
        config = configure(flags, role.env, [f"/lib/lib{name}.so" for name in role.preload], SYSTEM)
        start_engine(MemoryModel(SYSTEM, config), VllmNarrator(flags, role.env, ServerLog(sys.stderr)))
    except SystemExit:
        return "argument refused"
    except ConfigRejected:
        return "configuration refused"
    except EngineFailed as error:
        return next((cause for part, cause in CAUSES.items() if part in error.message), error.message[:60])
    return RUNS


def measure(space: SearchSpace, draws: int, seed: int = 1) -> dict[str, Any]:
    """The figures of `draws` random draws. The starts' log lines are dropped."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        return _measure(space, draws, seed)


def _measure(space: SearchSpace, draws: int, seed: int) -> dict[str, Any]:
    known = study_facts()
    # Without knowledge a user still names the ranks, and nothing else is derived.
    bare = space.model_copy(
        update={"derived": tuple(d for d in space.derived if d.name in {"tensor_parallel_size", "speculative_method"})}
    )
    rng = random.Random(seed)
    plain: Counter[str] = Counter()
    settled: Counter[str] = Counter()
    wrongly: Counter[str] = Counter()
    for _ in range(draws):
        values = draw(space, None, rng)
        before = fate(render(bare, Candidate(values=values), known).roles["server"])
        plain[before] += 1
        try:
            candidate = space.settle(values, known).candidate
        except InvalidCandidate as error:
            settled[REFUSED] += 1
            if before == RUNS:
                wrongly[error.problems[0].key] += 1
            continue
        settled[fate(render(space, candidate, known).roles["server"])] += 1
    without = 1 - plain[RUNS] / draws
    crashed = draws - settled[RUNS] - settled[REFUSED]
    return {
        "draws": draws,
        "knobs": len(space.knobs),
        "crash_share_without": round(without, 4),
        "crash_share_with": round(crashed / draws, 4),
        "refused_share": round(settled[REFUSED] / draws, 4),
        "refused_though_it_runs": dict(wrongly),
        "causes_without": dict(plain.most_common()),
        "causes_with": dict(settled.most_common()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    space = instantiate(SpaceCatalog().space("vllm-ascend-910c"), STACK).space
    result = measure(space, 2_000 if quick else 20_000)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(result, indent=2))
    sys.stdout.write(json.dumps(result, indent=2) + f"\nwritten to {OUT}\n")


if __name__ == "__main__":
    main()
