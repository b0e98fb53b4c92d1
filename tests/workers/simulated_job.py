"""A job for the real attempt on the built-in simulator: about 5 s on an idle machine."""

from __future__ import annotations

from autotune.domain.job import TrialJob
from autotune.domain.launch_plan import LaunchPlan, RolePlan
from autotune.domain.workload import LoadLevel, Workload
from tests import builders


def simulated_job(uid: str) -> TrialJob:
    """One card, one level of four short requests."""
    argv = ("--tensor-parallel-size", "2", "--max-num-seqs", "16")
    return builders.job(
        uid,
        deployment=builders.deployment(model="Qwen3.5-35B-A3B", devices=2, tensor_parallel=2),
        plan=LaunchPlan(roles={"server": RolePlan(argv=argv)}),
        workload=Workload(
            prompt_tokens=64, output_tokens=8, levels=(LoadLevel(concurrency=2, requests=4),), warmup_requests=1
        ),
    )
