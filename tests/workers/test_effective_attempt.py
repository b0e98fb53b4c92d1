"""Settings that an engine ignores or corrects, from attempt to outcome: the simulated endpoint, and the real linker."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.domain.deployment import facts
from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.launch_plan import LaunchPlan, RolePlan, render
from autotune.domain.measurement import Trust
from search_spaces.catalog import SpaceCatalog
from tests.workers import launching
from tests.workers.simulated_job import simulated_job
from workers.attempt import run_attempt
from workers.attempt_files import AttemptFiles
from workers.effective.roles import effective_roles
from workers.effective.vllm import CAPTURE_SIZES, PAGE_SIZE, STATIC_KERNEL
from workers.host_templates import HostTemplates

STATIC_PROOF = "static shape kernel will be used to accelerate aclgraph execution"
FLAGS = ("--tensor-parallel-size", "2", "--max-num-seqs", "16")


def graphs(mode: str, sizes: list[int]) -> tuple[str, str]:
    return "--compilation-config", json.dumps({"cudagraph_mode": mode, "cudagraph_capture_sizes": sizes})


def additional(content: dict[str, Any]) -> tuple[str, str]:
    return "--additional-config", json.dumps(content)


def simulated(root: Path, plan: RolePlan, templates: HostTemplates | None = None, **changes: Any) -> TrialOutcome:
    job = simulated_job("a1").model_copy(update={"plan": LaunchPlan(roles={"server": plan}), **changes})
    return run_attempt(job, root, templates or HostTemplates())


def not_applied(outcome: TrialOutcome, setting: str) -> str | None:
    """The decisive line of an attempt that ended because of this setting."""
    assert outcome.measurement is None
    assert outcome.failure is not None
    assert (outcome.failure.phase, outcome.failure.failure_class) == (Phase.READY, FailureClass.CONFIG_NOT_APPLIED)
    assert outcome.failure.failure_class.blames_candidate
    assert setting in outcome.failure.summary
    assert [i.setting for i in outcome.effective["server"].ignored] == [setting]
    return outcome.failure.decisive_line


def test_an_unknown_variable_ends_the_trial_before_the_load(tmp_path: Path) -> None:
    outcome = simulated(tmp_path, RolePlan(argv=FLAGS, env={"VLLM_FLASH_EVERYTHING": "1"}))
    line = not_applied(outcome, "env VLLM_FLASH_EVERYTHING")
    assert line == "Unknown vLLM environment variable detected: VLLM_FLASH_EVERYTHING"
    assert Phase.LOAD not in outcome.durations_s


def test_an_unknown_key_is_ignored_in_silence_and_found_by_its_missing_proof(tmp_path: Path) -> None:
    argv = (*FLAGS, *graphs("FULL_DECODE_ONLY", [1, 2]), *additional({"enable_static_kernel": True}))
    wrong_level = "--additional-config enable_static_kernel"
    outcome = simulated(tmp_path, RolePlan(argv=argv, proofs={wrong_level: STATIC_PROOF}))
    assert not_applied(outcome, wrong_level) is None


def test_what_the_engine_corrects_is_measured_and_recorded(tmp_path: Path) -> None:
    """Static kernels beside piecewise graphs, a truncated size and a host without large pages, in one launch."""
    systems = Path(__file__).parents[2] / "workers/simulator/systems"
    base = systems / "qwen3.5-35b-a3b-910c.yaml"
    (tmp_path / "system.yaml").write_text(yaml.safe_dump({"extends": str(base), "stack": {"large_pages": False}}))
    template = HostTemplates().template("simulated-910c").model_dump(mode="json")
    template |= {"name": "old-driver", "models": {"Qwen3.5-35B-A3B": str(tmp_path / "system.yaml")}}
    (tmp_path / "old-driver.yaml").write_text(yaml.safe_dump(template))
    job = simulated_job("a1")
    plan = RolePlan(
        argv=(
            *FLAGS,
            *graphs("PIECEWISE", [1, 2, 4096]),
            *additional({"ascend_compilation_config": {"enable_static_kernel": True}}),
        ),
        env={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,page_size:1g", "LOCAL_WORLD_SIZE": "2"},
        proofs={STATIC_KERNEL: STATIC_PROOF},
    )
    outcome = simulated(
        tmp_path,
        plan,
        HostTemplates(tmp_path),
        deployment=job.deployment.model_copy(update={"template": "old-driver"}),
    )

    assert outcome.failure is None
    assert {(role, c.setting): (c.asked, c.got) for role, c in outcome.corrected} == {
        ("server", "--compilation-config max_cudagraph_capture_size"): (4096, 2),
        ("server", PAGE_SIZE): ("1g", "2m"),
        ("server", STATIC_KERNEL): (True, False),
        ("server", CAPTURE_SIZES): ((1, 2, 4096), (1, 2)),
    }
    assert outcome.measurement is not None
    assert outcome.measurement.trust is not Trust.OK
    assert any(f"{PAGE_SIZE} = '2m', not '1g'" in reason for reason in outcome.measurement.trust_reasons)


def space_job(recipe: str | None) -> TrialJob:
    job = simulated_job("a1")
    space = SpaceCatalog(None).space("vllm-ascend-910c")
    values = space.baseline if recipe is None else next(r.values for r in space.recipes if r.name == recipe)
    known = facts(job.deployment, job.workload)
    candidate = space.settle(space.complete(values), known).candidate
    return job.model_copy(update={"plan": render(space, candidate, known)})


@pytest.mark.parametrize("recipe", [None, "report-a-mtp4"])
def test_the_spaces_own_candidates_run_as_asked(tmp_path: Path, recipe: str | None) -> None:
    outcome = run_attempt(space_job(recipe), tmp_path, HostTemplates())
    assert outcome.failure is None, outcome.failure
    config = outcome.effective["server"]
    assert (config.ignored, config.corrected, config.unproven) == ((), (), ())
    assert config.applied["--tensor-parallel-size"] == 2


def test_a_library_that_is_no_library_ends_the_trial(tmp_path: Path) -> None:
    """The words are the dynamic linker's own."""
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    template = launching.template(libraries={"broken": str(broken)})
    outcome = launching.run(tmp_path / "attempts", launching.job(preload=["broken"]), template)
    line = not_applied(outcome, "LD_PRELOAD")
    assert f"object '{broken}' from LD_PRELOAD cannot be preloaded" in (line or "")


def test_a_proof_is_looked_for_on_every_engine(tmp_path: Path) -> None:
    job = launching.job("--say", "fast path in effect")
    for uid, proof in (("a1", "fast path .* effect"), ("a2", "faster path")):
        plan = job.plan.roles["server"].model_copy(update={"proofs": {"env FAST": proof}})
        one = job.model_copy(update={"uid": uid, "plan": LaunchPlan(roles={"server": plan})})
        outcome = launching.run(tmp_path, one)
        if uid == "a1":
            assert outcome.failure is None
        else:
            assert not_applied(outcome, "env FAST") is None


def test_an_sglang_server_without_an_answer_is_judged_by_its_log(tmp_path: Path) -> None:
    said = "server_args=ServerArgs(model_path='m', token_ms=7.5, tp_size=1)"
    job = launching.job("--say", said, "--token-ms", "1")
    outcome = launching.run(tmp_path, job, launching.template(engine="sglang-test"))
    assert [(c.setting, c.asked, c.got) for _, c in outcome.corrected] == [("--token-ms", 1, 7.5)]
    assert outcome.measurement is not None


@pytest.mark.parametrize(("path", "asked_for"), [("/server_info", 1), ("/get_server_info", 2), ("/nowhere", 2)])
def test_sglangs_answer_counts_more_than_its_log_and_secrets_are_masked(
    tmp_path: Path, path: str, asked_for: int
) -> None:
    answer = json.dumps({"page_size": 64, "api_key": "swordfish", "internal_states": []}).encode()
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Keep quiet."""

        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200 if self.path == path else 404)
            self.end_headers()
            self.wfile.write(answer if self.path == path else b"[")

    files = AttemptFiles(tmp_path, "a1")
    files.create()
    files.log("server").write_text("server_args=ServerArgs(page_size=128, api_key='swordfish')\n")
    plan = LaunchPlan(roles={"server": RolePlan(argv=("--page-size", "64"))})
    template = launching.template(engine="sglang-ascend")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        found = effective_roles(plan, template, files, url, ("swordfish",))["server"]
        server.shutdown()
        thread.join()
    assert len(paths) == asked_for
    assert found.applied["--api-key"] == "***"
    assert [(c.asked, c.got) for c in found.corrected] == ([(64, 128)] if path == "/nowhere" else [])
