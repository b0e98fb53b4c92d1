"""Whole attempts on virtual time: what they measure, how they fail, and that real processes say the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import LaunchPlan, RolePlan
from autotune.domain.measurement import Trust
from autotune.domain.workload import LoadLevel, Workload
from tests import builders
from workers.attempt import run_attempt
from workers.attempt_files import AttemptFiles
from workers.host_templates import BUILT_IN, HostTemplates
from workers.simulator.virtual.trial import run_trial

SERVER = ("--tensor-parallel-size", "2", "--max-num-seqs", "16", "--max-model-len", "4096")
GRAPHS = ("--compilation-config", '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,4,8]}')
STATIC = ("--additional-config", '{"ascend_compilation_config":{"enable_static_kernel":true}}')


def workload(**changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "prompt_tokens": 64,
        "output_tokens": 8,
        "levels": (LoadLevel(concurrency=1, requests=3), LoadLevel(concurrency=4, requests=8)),
        "warmup_requests": 1,
    }
    return Workload(**{**fields, **changes})


def job(
    uid: str,
    *argv: str,
    env: Mapping[str, str] | None = None,
    constants: Mapping[str, KnobValue] | None = None,
    preload: tuple[str, ...] = (),
    template: str = "simulated-910c",
    **changes: Any,
) -> TrialJob:
    role = RolePlan(argv=(*SERVER, *argv), env=dict(env or {}), constants=dict(constants or {}), preload=preload)
    fields: dict[str, Any] = {
        "deployment": builders.deployment(
            template=template, model="Qwen3.5-35B-A3B", devices=2, tensor_parallel=2, max_model_len=4096
        ),
        "plan": LaunchPlan(roles={"server": role}),
        "workload": workload(),
    }
    return builders.job(uid, **{**fields, **changes})


@pytest.fixture
def virtual(tmp_path: Path) -> Callable[[TrialJob], TrialOutcome]:
    def run(one: TrialJob) -> TrialOutcome:
        files = AttemptFiles(tmp_path / "virtual", one.uid)
        files.create()
        return run_trial(one, files, HostTemplates(tmp_path / "templates"))

    return run


def with_settings(folder: Path, name: str, base: str = "simulated-910c", **env: str) -> str:
    """A template of the user's own with settings of the simulation; gives its name."""
    content = yaml.safe_load((BUILT_IN / f"{base}.yaml").read_text(encoding="utf-8"))
    for role in content["roles"].values():
        role["env"] = {**role.get("env", {}), **env}
    templates = folder / "templates"
    templates.mkdir(exist_ok=True)
    (templates / f"{name}.yaml").write_text(yaml.safe_dump({**content, "name": name}))
    return name


Virtual = Callable[[TrialJob], TrialOutcome]


def test_a_trial_is_measured_with_everything_an_attempt_tells(virtual: Virtual) -> None:
    outcome = virtual(job("measured-1", *GRAPHS))
    measurement = outcome.measurement
    assert measurement is not None
    assert list(measurement.levels) == ["c1", "c4"]
    assert measurement.trust is Trust.WARN
    assert {f.rule for f in measurement.findings if f.trust is not Trust.OK} == {"few_requests"}
    assert (measurement.levels["c4"].sent, measurement.levels["c4"].failed) == (8, 0)
    assert measurement.levels["c4"].output_tokens_mean == 8
    assert outcome.provenance is not None
    assert (outcome.provenance.simulated, outcome.provenance.virtual_time) == (True, True)
    assert "{port}" in outcome.provenance.roles["server"].argv
    assert "Application startup complete" in outcome.log_tail
    assert outcome.effective["server"].applied


def test_durations_are_those_of_a_real_launch(virtual: Virtual) -> None:
    few, many = virtual(job("few-1", *GRAPHS)), virtual(job("many-1"))
    assert list(few.durations_s) == ["place", "launch", "ready", "warm_up", "load"]
    assert 30 < few.durations_s["ready"] < 120  # weights, a profile run, three graphs
    levels = few.measurement.levels if few.measurement else {}
    assert few.durations_s["load"] > sum(level.duration_s for level in levels.values())
    assert many.durations_s["ready"] != few.durations_s["ready"]


def test_the_same_attempt_comes_out_the_same_and_another_one_differs(virtual: Virtual) -> None:
    first, again, other = (virtual(job(uid, *GRAPHS)) for uid in ("same-1", "same-1", "other-1"))
    assert first.measurement == again.measurement
    assert first.measurement != other.measurement


def test_a_setting_has_its_effect(virtual: Virtual) -> None:
    def tpot_ms(outcome: TrialOutcome) -> float:
        level = outcome.measurement.levels["c4"] if outcome.measurement else None
        assert level is not None
        assert level.tpot_ms is not None
        return level.tpot_ms.mean

    plain = tpot_ms(virtual(job("plain-1", *GRAPHS)))
    assert tpot_ms(virtual(job("eager-1", "--enforce-eager"))) > 1.5 * plain
    assert tpot_ms(virtual(job("lean-1", *GRAPHS, preload=("jemalloc",)))) < plain


def test_constants_of_the_engine_are_set_and_proven(virtual: Virtual) -> None:
    target = "vllm_ascend.ops.weight_prefetch:MOE_PREFETCH_TOKEN_THRESHOLD"
    outcome = virtual(job("constant-1", *GRAPHS, constants={target: 1}))
    assert outcome.measurement is not None
    assert f"autotune: set {target} from 96 to 1" in outcome.log_tail


def test_what_the_engine_corrects_is_measured_with_a_warning(virtual: Virtual) -> None:
    piecewise = ("--compilation-config", '{"cudagraph_mode":"PIECEWISE"}')
    outcome = virtual(job("corrected-1", *piecewise, *STATIC, env={"LOCAL_WORLD_SIZE": "2"}))
    assert outcome.measurement is not None
    assert outcome.measurement.trust is Trust.WARN
    assert outcome.corrected


def test_requests_that_cannot_be_served_are_the_candidates_fault(virtual: Virtual) -> None:
    failure = virtual(job("long-1", *GRAPHS, workload=workload(prompt_tokens=4095))).failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (Phase.LOAD, FailureClass.REQUEST_ERRORS)
    assert failure.decisive_line == "http_400"


def test_prompts_that_do_not_exist_are_our_fault(virtual: Virtual) -> None:
    level = LoadLevel(concurrency=1, requests=600)
    failure = virtual(job("short-1", *GRAPHS, workload=workload(prompt_tokens=1, levels=(level,)))).failure
    assert failure is not None
    assert failure.failure_class is FailureClass.CLIENT_FAULT


def test_a_silent_start_is_a_hang(virtual: Virtual, tmp_path: Path) -> None:
    name = with_settings(tmp_path, "hanging", AUTOTUNE_SIM_FAULT="loading-hang")
    outcome = virtual(job("hang-1", *GRAPHS, template=name))
    assert outcome.failure is not None
    assert (outcome.failure.phase, outcome.failure.failure_class) == (Phase.READY, FailureClass.HANG)
    assert "no new line in the log for 30 s" in outcome.failure.summary
    assert outcome.durations_s["ready"] > 30


def test_an_engine_that_stops_stepping_is_a_hang_as_with_real_processes(virtual: Virtual, tmp_path: Path) -> None:
    name = with_settings(tmp_path, "freezing", AUTOTUNE_SIM_FAULT="load-hang")
    load = workload(output_tokens=200, request_timeout_s=50.0)
    failure = virtual(job("freeze-1", *GRAPHS, template=name, workload=load)).failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (Phase.LOAD, FailureClass.HANG)
    assert failure.summary == "no token for 30 s"


def test_requests_that_time_out_before_patience_ends_are_failed_requests(virtual: Virtual, tmp_path: Path) -> None:
    name = with_settings(tmp_path, "freezing", AUTOTUNE_SIM_FAULT="load-hang")
    load = workload(output_tokens=200, request_timeout_s=10.0)
    failure = virtual(job("freeze-2", *GRAPHS, template=name, workload=load)).failure
    assert failure is not None
    assert failure.failure_class in {FailureClass.LOAD_TIMEOUT, FailureClass.REQUEST_ERRORS}


def test_a_load_that_takes_too_long_is_given_up(virtual: Virtual) -> None:
    load = workload(output_tokens=2000, levels=(LoadLevel(concurrency=1, requests=200),))
    failure = virtual(job("slow-1", *GRAPHS, workload=load)).failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (Phase.LOAD, FailureClass.LOAD_TIMEOUT)
    assert failure.summary == "the load did not end within 1800 s"


def test_a_cancelled_trial_ends(tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    one = job("cancelled-1", *GRAPHS)
    files = AttemptFiles(tmp_path, one.uid)
    files.create()
    failure = run_trial(one, files, HostTemplates(), cancelled).failure
    assert failure is not None
    assert (failure.failure_class, failure.summary) == (FailureClass.INFRASTRUCTURE, "cancelled")


def deployment_of_two(uid: str, *, decode_mode: str = "decode", prefill: tuple[str, ...] = ()) -> TrialJob:
    """Prefill and decode behind a router; most of each prompt is shared."""
    common = ("--tp-size", "8", "--context-length", "16384")
    roles = {
        "router": RolePlan(argv=("--pd-disaggregation",)),
        "prefill": RolePlan(argv=(*common, "--disaggregation-mode", "prefill", *prefill)),
        "decode": RolePlan(argv=(*common, "--disaggregation-mode", decode_mode, "--enable-cache-report")),
    }
    return builders.job(
        uid,
        deployment=builders.deployment(
            template="simulated-950dt-pd", model="DeepSeek-MoE", devices=16, tensor_parallel=8
        ),
        plan=LaunchPlan(roles=roles),
        workload=workload(prompt_tokens=2048, shared_prefix_tokens=1536),
    )


def test_prefill_and_decode_are_measured_together(virtual: Virtual) -> None:
    outcome = virtual(deployment_of_two("two-1"))
    assert outcome.measurement is not None, outcome.failure
    for level in outcome.measurement.levels.values():
        assert level.uncached_tokens_mean == 2048 - 1536
        assert level.ttft_ms is not None
        assert level.failed == 0
    assert outcome.provenance is not None
    assert set(outcome.provenance.roles) == {"router", "prefill", "decode"}


def test_a_failed_role_is_named(virtual: Virtual) -> None:
    failure = virtual(deployment_of_two("bad-role-1", prefill=("--no-such-flag",))).failure
    assert failure is not None
    assert failure.failure_class is FailureClass.INVALID_CONFIG
    assert failure.summary == "prefill ended with exit code 2 in phase ready"
    assert "--no-such-flag" in failure.log_tail


def test_a_deployment_that_virtual_time_does_not_know_is_said(virtual: Virtual) -> None:
    failure = virtual(deployment_of_two("unknown-1", decode_mode="prefill")).failure
    assert failure is not None
    assert failure.failure_class is FailureClass.INFRASTRUCTURE
    assert "one for prefill and one for decode" in failure.summary


@pytest.mark.parametrize(
    ("name", "change", "template", "words"),
    [
        ("another-program", {"simulated": True}, "llama-cpp", "starts another program"),
        ("not-marked", {"simulated": False}, "simulated-910c", "not marked"),
    ],
)
def test_only_simulated_servers_run_on_virtual_time(
    virtual: Virtual, tmp_path: Path, name: str, change: dict[str, bool], template: str, words: str
) -> None:
    content = yaml.safe_load((BUILT_IN / f"{template}.yaml").read_text(encoding="utf-8"))
    folder = tmp_path / "templates"
    folder.mkdir()
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({**content, **change, "name": name}))
    failure = virtual(job(f"{name}-1", template=name)).failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (Phase.PLACE, FailureClass.INFRASTRUCTURE)
    assert words in failure.summary


@pytest.mark.parametrize(
    ("name", "argv", "env", "failure_class"),
    [
        ("stranger", ("--no-such-flag", "1"), {}, FailureClass.INVALID_CONFIG),
        ("rejected", ("--max-num-batched-tokens", "4"), {}, FailureClass.INVALID_CONFIG),
        ("world", (*GRAPHS, *STATIC), {}, None),
        ("buffers", GRAPHS, {"HCCL_BUFFSIZE": "4000"}, FailureClass.OUT_OF_MEMORY),
        ("queue", GRAPHS, {"TASK_QUEUE_ENABLE": "2"}, FailureClass.GRAPH_CAPTURE),
    ],
)
def test_a_start_fails_as_with_a_real_process(
    virtual: Virtual,
    tmp_path: Path,
    name: str,
    argv: tuple[str, ...],
    env: dict[str, str],
    failure_class: FailureClass | None,
) -> None:
    one = job(f"{name}-1", *argv, env=env)
    real, simulated = run_attempt(one, tmp_path / "real", HostTemplates()).failure, virtual(one).failure
    assert real is not None
    assert simulated is not None
    # A real process may end while its start is still being watched for, in a phase before.
    assert (simulated.phase, simulated.exit_code) == (Phase.READY, real.exit_code)
    assert (simulated.failure_class, simulated.decisive_line) == (real.failure_class, real.decisive_line)
    assert failure_class in (None, simulated.failure_class)
    assert real.log_tail.splitlines()[-1] == simulated.log_tail.splitlines()[-1]


def test_a_death_under_load_is_that_of_the_real_process(virtual: Virtual, tmp_path: Path) -> None:
    load = workload(prompt_tokens=500, output_tokens=400, levels=(LoadLevel(concurrency=8, requests=16),))
    one = job("death-1", *GRAPHS, env={"HCCL_BUFFSIZE": "1900"}, workload=load)
    simulated = virtual(one).failure
    assert simulated is not None
    assert (simulated.failure_class, simulated.exit_code) == (FailureClass.OUT_OF_MEMORY, 1)
    real = run_attempt(one, tmp_path / "real", HostTemplates()).failure
    assert real is not None
    assert simulated.phase is real.phase
    assert (simulated.failure_class, simulated.decisive_line) == (real.failure_class, real.decisive_line)
