"""One attempt from start to outcome, against real processes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from autotune.domain.failure import FailureClass, Phase
from autotune.domain.launch_plan import LaunchPlan, RolePlan
from autotune.domain.measurement import Trust
from autotune.domain.template import Deadlines, LaunchTemplate
from autotune.domain.workload import Workload
from tests.workers.launching import MODEL, QUICK, OneTemplate, endless, is_alive, job, left, number_in, run, template
from workers.attempt import run_attempt
from workers.attempt_files import AlreadyStarted, AttemptFiles


def test_a_good_server_is_measured_at_every_level_and_stopped(tmp_path: Path) -> None:
    outcome = run(tmp_path, job("--token-ms", "2", env={"OMP_NUM_THREADS": "4"}))

    assert outcome.failure is None
    assert outcome.measurement is not None
    assert outcome.measurement.levels.keys() == {"c1", "c4"}
    assert outcome.measurement.trust is not Trust.INVALID, outcome.measurement.trust_reasons
    level = outcome.measurement.levels["c4"]
    assert (level.sent, level.failed, level.output_tokens_mean) == (16, 0, 16)
    assert level.tpot_ms is not None
    assert level.tpot_ms.p50 >= 2
    assert set(outcome.durations_s) == {phase.value for phase in Phase}
    assert "/v1/completions" in outcome.log_tail
    assert left(tmp_path) == {}
    assert AttemptFiles(tmp_path, outcome.uid).outcome() == outcome


def test_the_provenance_is_the_command_with_open_places(tmp_path: Path) -> None:
    outcome = run(
        tmp_path,
        job("--token-ms", "0.5", env={"OMP_NUM_THREADS": "4"}),
        template(env={"CACHE": "{trial_dir}/cache", "MODEL": "{model_path}"}),
    )

    assert outcome.provenance is not None
    assert outcome.provenance.simulated
    assert outcome.provenance.template == "fake"
    launched = outcome.provenance.roles["server"]
    assert launched.argv[3:] == (
        "--host",
        "{host}",
        "--port",
        "{port}",
        "--served-model-name",
        MODEL,
        "--token-ms",
        "0.5",
    )
    assert launched.env == {"CACHE": "{trial_dir}/cache", "MODEL": "/models/tiny", "OMP_NUM_THREADS": "4"}


def test_a_second_start_is_refused_and_launches_nothing(tmp_path: Path) -> None:
    first = run(tmp_path, job("--exit", "1"))
    pid_file = tmp_path / first.uid / "pid"
    pid_file.unlink()

    with pytest.raises(AlreadyStarted):
        run(tmp_path, job())

    assert not pid_file.exists()
    assert AttemptFiles(tmp_path, first.uid).outcome() == first


def test_of_many_simultaneous_starts_one_wins(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)
    results: list[str] = []

    def claim() -> None:
        barrier.wait()
        try:
            AttemptFiles(tmp_path, "a1").claim()
            results.append("won")
        except AlreadyStarted:
            results.append("lost")

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["lost"] * 7 + ["won"]
    runner = AttemptFiles(tmp_path, "a1").runner()
    assert runner is not None
    assert runner.is_running


OOM = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 60.96 GiB total capacity)"


@pytest.mark.parametrize(
    ("argv", "deadlines", "phase", "failure_class", "line"),
    [
        pytest.param(
            ("--say", OOM, "--exit", "1"), QUICK, Phase.READY, FailureClass.OUT_OF_MEMORY, OOM, id="crash-at-start"
        ),
        pytest.param(
            ("--no-such-flag", "1"), QUICK, Phase.READY, FailureClass.INVALID_CONFIG, "unrecognized", id="argparse"
        ),
        pytest.param(("--exit", "0"), QUICK, Phase.READY, FailureClass.CRASH, None, id="ends-without-a-word"),
        pytest.param(
            ("--deaf",),
            Deadlines(ready_s=20, stall_s=0.5, stop_s=2),
            Phase.READY,
            FailureClass.HANG,
            None,
            id="silent",
        ),
        pytest.param(
            ("--chatter-s", "60"),
            Deadlines(ready_s=1, stall_s=20, stop_s=2),
            Phase.READY,
            FailureClass.START_TIMEOUT,
            None,
            id="late",
        ),
        pytest.param(
            ("--unhealthy",),
            Deadlines(ready_s=1, stall_s=20, stop_s=2),
            Phase.READY,
            FailureClass.START_TIMEOUT,
            None,
            id="unhealthy",
        ),
        pytest.param(
            ("--say", OOM, "--deaf"),
            Deadlines(ready_s=1, stall_s=20, stop_s=2),
            Phase.READY,
            FailureClass.OUT_OF_MEMORY,
            OOM,
            id="failed-inside-and-hangs",
        ),
        pytest.param(
            ("--serve", "another"), QUICK, Phase.READY, FailureClass.INFRASTRUCTURE, None, id="foreign-server"
        ),
        pytest.param(("--die-at-request", "8"), QUICK, Phase.LOAD, FailureClass.CRASH, "SIGKILL", id="dies-under-load"),
        pytest.param(
            ("--fail-requests",), QUICK, Phase.WARM_UP, FailureClass.REQUEST_ERRORS, "500", id="refuses-requests"
        ),
        pytest.param(
            ("--fail-after", "8"), QUICK, Phase.LOAD, FailureClass.REQUEST_ERRORS, "500", id="refuses-under-load"
        ),
        pytest.param(
            ("--stall-requests",),
            Deadlines(ready_s=20, stall_s=20, warm_up_s=1, stop_s=2),
            Phase.WARM_UP,
            FailureClass.LOAD_TIMEOUT,
            None,
            id="never-answers",
        ),
    ],
)
def test_every_way_to_fail_has_its_phase_and_class(
    tmp_path: Path,
    argv: tuple[str, ...],
    deadlines: Deadlines,
    phase: Phase,
    failure_class: FailureClass,
    line: str | None,
) -> None:
    outcome = run(tmp_path, job(*argv), template(deadlines=deadlines))

    failure = outcome.failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (phase, failure_class), failure
    assert (line or "") in (failure.decisive_line or ""), failure
    assert outcome.measurement is None
    assert Phase.STOP.value in outcome.durations_s
    assert left(tmp_path) == {}
    assert AttemptFiles(tmp_path, outcome.uid).outcome() == outcome


def test_a_load_that_is_too_long_ends_with_the_deadline(tmp_path: Path) -> None:
    limits = Deadlines(ready_s=20, stall_s=20, warm_up_s=20, load_s=0.5, stop_s=2)
    outcome = run(tmp_path, job(workload=endless()), template(deadlines=limits))
    assert outcome.failure is not None
    assert (outcome.failure.phase, outcome.failure.failure_class) == (Phase.LOAD, FailureClass.LOAD_TIMEOUT)
    assert left(tmp_path) == {}


def test_a_missing_program_is_the_hosts_fault(tmp_path: Path) -> None:
    outcome = run(tmp_path, job(), template(argv=("/no/such/program", "{port}")))
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
    assert "/no/such/program" in (outcome.failure.decisive_line or "")


@pytest.mark.parametrize(
    ("env", "preload"),
    [
        ({"LD_PRELOAD": "/tmp/evil.so"}, ()),
        ({"PYTHONPATH": "/tmp"}, ()),
        ({"AUTOTUNE_ATTEMPT": "another"}, ()),
        ({"TMPDIR": "/tmp"}, ()),
        ({"A B": "1"}, ()),
        ({"OMP_NUM_THREADS": "1\n2"}, ()),
        ({"OMP_NUM_THREADS": "1" * 5000}, ()),
        ({}, ("jemalloc",)),
    ],
)
def test_a_plan_with_a_refused_setting_is_not_launched(
    tmp_path: Path, env: dict[str, str], preload: tuple[str, ...]
) -> None:
    outcome = run(tmp_path, job(env=env, preload=preload))
    failure = outcome.failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (Phase.LAUNCH, FailureClass.INVALID_CONFIG)
    assert all(name in (failure.decisive_line or "") for name in (*env, *preload))
    assert not (tmp_path / outcome.uid / "pid").exists()


def test_a_plan_for_an_unknown_role_is_not_launched(tmp_path: Path) -> None:
    strange = job().model_copy(update={"plan": LaunchPlan(roles={"prefill": RolePlan()})})
    outcome = run(tmp_path, strange)
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INVALID_CONFIG
    assert "prefill" in (outcome.failure.decisive_line or "")


def test_what_this_host_lacks_does_not_blame_the_candidate(tmp_path: Path) -> None:
    no_model = run(tmp_path, job(uid="a1", model="other-model"))
    no_library = run(tmp_path, job(uid="a2", preload=["je"]), template(libraries={"je": "/no/libjemalloc.so"}))
    no_template = run(tmp_path, job(uid="a3"), template().model_copy(update={"name": "another"}))
    for outcome, word in ((no_model, MODEL), (no_library, "libjemalloc"), (no_template, "another")):
        assert outcome.failure is not None
        assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
        assert word in outcome.failure.summary


def test_secrets_reach_the_server_and_nothing_that_is_kept(tmp_path: Path) -> None:
    secret = "hf_5uper5ecret"
    outcome = run(
        tmp_path,
        job("--say", f"ValueError: bad token {secret}", "--exit", "1", env={"MY_API_KEY": "k3y-of-mine"}),
        template(env={"HF_TOKEN": secret, "MAX_TOKENS": "4096"}),
    )
    assert outcome.failure is not None
    assert outcome.failure.decisive_line == "ValueError: bad token ***"
    assert outcome.provenance is not None
    assert outcome.provenance.roles["server"].env == {"HF_TOKEN": "***", "MAX_TOKENS": "4096", "MY_API_KEY": "***"}
    for file in (tmp_path / outcome.uid).rglob("*"):
        assert not file.is_file() or secret not in file.read_text(errors="replace"), file


def test_a_setting_that_the_server_corrected_costs_trust(tmp_path: Path) -> None:
    said = job("--say", "WARNING Truncating max_cudagraph_capture_size to 96", "--token-ms", "2")
    outcome = run(tmp_path, said, template(engine="vllm-test"))
    assert outcome.measurement is not None
    assert outcome.measurement.trust is Trust.WARN
    assert any("max_cudagraph_capture_size = 96" in reason for reason in outcome.measurement.trust_reasons)


class BrokenTemplates(OneTemplate):
    """A defect of ours."""

    def template(self, name: str) -> LaunchTemplate:
        raise ZeroDivisionError("a defect")


def test_our_own_defect_is_an_infrastructure_failure_with_its_traceback(tmp_path: Path) -> None:
    outcome = run_attempt(job(), tmp_path, BrokenTemplates(template()))
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
    assert "ZeroDivisionError: a defect" in outcome.failure.summary


@pytest.mark.parametrize(
    ("argv", "workload"), [(("--deaf",), None), ((), endless())], ids=["while-starting", "under-load"]
)
def test_a_cancelled_attempt_ends_and_leaves_nothing(
    tmp_path: Path, argv: tuple[str, ...], workload: Workload | None
) -> None:
    cancelled = threading.Event()
    timer = threading.Timer(1.0, cancelled.set)
    timer.start()
    one = job(*argv, workload=workload)
    outcome = run_attempt(one, tmp_path, OneTemplate(template()), cancelled)
    timer.join()
    assert outcome.failure is not None
    assert (outcome.failure.failure_class, outcome.failure.summary) == (FailureClass.INFRASTRUCTURE, "cancelled")
    server = number_in(tmp_path / one.uid / "pid")
    assert server is not None
    assert not is_alive(server)
    assert left(tmp_path) == {}


def test_a_deployment_of_two_roles_is_launched_together_and_ends_together(tmp_path: Path) -> None:
    base = template()
    both = base.model_copy(update={"roles": {"server": base.roles["server"], "helper": base.roles["server"]}})
    plan = LaunchPlan(roles={"helper": RolePlan(argv=("--say", OOM, "--exit", "1"))})
    outcome = run(tmp_path, job().model_copy(update={"plan": plan}), both)
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.OUT_OF_MEMORY
    assert outcome.failure.summary.startswith("helper ended with exit code 1")
    assert left(tmp_path) == {}
