"""Attempts on the simulated deployment of prefill, decode and router: three real processes and a real load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.domain.deployment import Deployment
from autotune.domain.deployment import facts as study_facts
from autotune.domain.failure import FailureClass, Phase
from autotune.domain.instance import instantiate
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import render
from autotune.domain.workload import Workload
from search_spaces.catalog import SpaceCatalog
from tests import builders
from tests.workers.launching import left
from workers.attempt import run_attempt
from workers.host_templates import HostTemplates

WHOLE = SpaceCatalog().space("sglang-ascend-950dt-pd")
SPACE = instantiate(WHOLE, WHOLE.stack).space
RECIPES: Mapping[str, Mapping[str, KnobValue]] = {recipe.name: recipe.values for recipe in SPACE.recipes}
DEPLOYMENT = Deployment(
    template="simulated-950dt-pd",
    model="DeepSeek-MoE",
    devices=16,
    tensor_parallel=8,
    max_model_len=8192,
    model_facts={"hidden_size": 4096, "experts": 256, "experts_per_token": 6},
)
WORKLOAD = Workload.model_validate(
    {
        "prompt_tokens": 1024,
        "shared_prefix_tokens": 896,
        "output_tokens": 12,
        "levels": [{"concurrency": 2, "requests": 6}],
        "warmup_requests": 1,
        "request_timeout_s": 30,
    }
)


def attempt(folder: Path, values: Mapping[str, KnobValue], *, ruled: bool = True) -> TrialOutcome:
    """One attempt; `ruled`: what the space's rules repair is repaired."""
    about: dict[str, Any] = study_facts(DEPLOYMENT, WORKLOAD)
    space = SPACE if ruled else SPACE.model_copy(update={"rules": ()})
    plan = render(space, space.settle(space.complete(dict(values)), about).candidate, about)
    job: TrialJob = builders.job(uid="s1-t0-a1", deployment=DEPLOYMENT, plan=plan, workload=WORKLOAD)
    return run_attempt(job, folder, HostTemplates())


def test_prefill_and_decode_serve_a_load_through_the_router(tmp_path: Path) -> None:
    outcome = attempt(tmp_path, RECIPES["report-c-tuned"])
    assert outcome.failure is None, outcome.failure
    assert outcome.measurement is not None
    (level,) = outcome.measurement.levels.values()
    assert (level.sent, level.failed) == (6, 0)
    assert level.output_tokens_mean == 12
    assert level.uncached_tokens_mean == 128  # the rest of a prompt is in prefill's cache since the warm-up
    assert left(tmp_path) == {}
    assert outcome.provenance is not None
    roles = outcome.provenance.roles
    assert list(roles) == ["router", "prefill", "decode"]
    assert "http://{host}:{decode_port}" in roles["router"].argv
    assert (roles["prefill"].env["ASCEND_RT_VISIBLE_DEVICES"], roles["decode"].env["ASCEND_RT_VISIBLE_DEVICES"]) == (
        "0,1,2,3,4,5,6,7",
        "8,9,10,11,12,13,14,15",
    )
    for name in ("prefill", "decode"):
        assert not outcome.effective[name].ignored
        assert outcome.effective[name].applied["--disaggregation-mode"] == name
        log = (tmp_path / "s1-t0-a1" / f"{name}.log").read_text()
        assert "The server is fired up and ready to roll!" in log


def test_rows_beyond_the_dispatch_capacity_crash_decode_at_capture(tmp_path: Path) -> None:
    outcome = attempt(tmp_path, RECIPES["report-c-dispatch-35"])
    failure = outcome.failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (Phase.READY, FailureClass.INVALID_CONFIG)
    assert failure.summary.startswith("decode ended with")
    assert failure.decisive_line is not None
    assert "num_max_dispatch_tokens_per_rank >= x.size(0)" in failure.decisive_line
    assert "Received sigquit from a child process" in failure.log_tail
    assert left(tmp_path) == {}


@pytest.mark.parametrize(("role", "knob"), [("prefill", "prefill_dp_size"), ("decode", "decode_dp_size")])
def test_arguments_that_a_role_refuses_are_that_roles_failure(tmp_path: Path, role: str, knob: str) -> None:
    outcome = attempt(tmp_path, {knob: 2}, ruled=False)
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INVALID_CONFIG
    assert outcome.failure.summary.startswith(f"{role} ended with exit code 1")
    assert "number of visible devices" in (outcome.failure.decisive_line or "")
