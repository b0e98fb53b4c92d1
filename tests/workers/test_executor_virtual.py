"""Attempts on virtual time, as an executor runs them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.engine.ports import TemplateSource, TrialExecutor
from tests import builders
from tests.contracts.executor_contract import PATIENCE_S, SLOTS, ExecutorContract, collected, eventually
from tests.workers.scripted_attempt import scripted_job
from tests.workers.simulated_job import simulated_job
from workers.attempt_files import AttemptFiles
from workers.virtual_executor import VirtualExecutor

STARTED: list[tuple[threading.Event, threading.Event]] = []  # of each trial: to cancel it, and whether it has ended


def scripted_trial(
    job: TrialJob, files: AttemptFiles, _templates: TemplateSource, cancelled: threading.Event
) -> TrialOutcome:
    """What `tests.workers.scripted_attempt` plays with a process."""
    ended = threading.Event()
    STARTED.append((cancelled, ended))
    try:
        with (files.folder / "starts").open("a") as starts:
            starts.write("once\n")
        return _play(job.plan.roles["server"].env["SCRIPT"], files, cancelled)
    finally:
        ended.set()


def _play(script: str, files: AttemptFiles, cancelled: threading.Event) -> TrialOutcome:
    failure = None
    match script:
        case "wait":
            while not (files.folder / "go").exists() and not cancelled.is_set():
                time.sleep(0.01)
        case "raise":
            raise RuntimeError("the script says so")
        case "crash":
            failure = builders.failure()
    return builders.outcome(files.uid, failure=failure)


@pytest.fixture
def attempts_root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "attempts"
    for cancelled, ended in STARTED:  # no test leaves a trial behind
        cancelled.set()
        assert ended.wait(PATIENCE_S)
    STARTED.clear()


def virtual(root: Path, slots: int = SLOTS) -> VirtualExecutor:
    return VirtualExecutor(root, root.parent / "templates", slots, scripted_trial)


class TestVirtual(ExecutorContract):
    """The contract with threads in the place of processes."""

    def make(self) -> TrialExecutor:
        return virtual(self.root)

    def lose_runner(self, executor: TrialExecutor, uid: str) -> None:
        raise NotImplementedError("the runner is this process")

    def runs(self, job: TrialJob) -> bool:
        runner = self.files(job).runner()
        return runner is not None and runner.is_running and self.starts(job) > 0

    def test_killed_runner_is_an_infrastructure_failure(self, executor: TrialExecutor) -> None:
        """The runner is another dispatcher, which dies with everything that it had in flight."""
        job = self.job("wait")
        arguments = [sys.executable, "-c", SUBMIT, str(self.root), job.model_dump_json()]
        dispatcher = subprocess.Popen(arguments)
        try:
            assert eventually(lambda: self.runs(job))
            assert executor.adopt(job)
            assert executor.collect(0.1) == []
        finally:
            dispatcher.kill()
            dispatcher.wait()
        outcome = collected(executor)
        self.assert_lost(outcome)
        assert outcome.failure is not None
        assert str(dispatcher.pid) in outcome.failure.summary
        executor.acknowledge(job.uid)

    @pytest.mark.parametrize("script", ["raise"])
    def test_runner_that_ends_without_outcome_is_an_infrastructure_failure(
        self, executor: TrialExecutor, script: str
    ) -> None:
        job = self.job(script)
        executor.submit(job)
        outcome = collected(executor)
        self.assert_lost(outcome)
        assert outcome.failure is not None
        assert "the script says so" in outcome.failure.summary
        executor.acknowledge(job.uid)
        assert executor.collect(0.0) == []

    def test_cancel_leaves_no_process_and_no_outcome(self, executor: TrialExecutor) -> None:
        job = self.job("wait")
        executor.submit(job)
        assert eventually(lambda: self.runs(job))
        executor.cancel(job.uid)
        assert self.files(job).outcome() is not None  # the thread has ended
        assert executor.collect(0.1) == []
        executor.cancel(job.uid)

    def test_attempt_that_was_cancelled_before_it_began_never_begins(self, executor: TrialExecutor) -> None:
        job = self.job("measure")
        self.files(job).create()
        executor.cancel(job.uid)
        executor.submit(job)
        self.assert_lost(collected(executor))
        assert self.starts(job) == 0


SUBMIT = """
import sys, time
from pathlib import Path
from autotune.domain.job import TrialJob
from tests.workers.test_executor_virtual import virtual
virtual(Path(sys.argv[1])).submit(TrialJob.model_validate_json(sys.argv[2]))
time.sleep(600)
"""


def test_job_without_runner_is_not_taken_over_and_can_never_start(attempts_root: Path) -> None:
    job = scripted_job("orphan-0-1", "measure")
    files = AttemptFiles(attempts_root, job.uid)
    files.write_job(job)  # its dispatcher died before it claimed the attempt
    executor = virtual(attempts_root)
    assert not executor.adopt(job)
    assert executor.adopt(job)  # asked again, it has ended
    failure = collected(executor).failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (Phase.PLACE, FailureClass.INFRASTRUCTURE)
    assert not (files.folder / "starts").exists()


def test_damaged_outcome_is_an_infrastructure_failure(attempts_root: Path) -> None:
    job = scripted_job("damaged-0-1", "measure")
    files = AttemptFiles(attempts_root, job.uid)
    files.write_job(job)
    files.claim()
    (files.folder / "outcome.json").write_text('{"uid": "damaged-0-1"}')
    executor = virtual(attempts_root)
    assert executor.adopt(job)
    failure = collected(executor).failure
    assert failure is not None
    assert "outcome.json" in failure.summary


def test_real_trial_is_measured_and_leaves_its_log(attempts_root: Path) -> None:
    executor = VirtualExecutor(attempts_root, attempts_root.parent / "templates", 2)
    job = simulated_job("real-0-1")
    executor.submit(job)
    outcome = collected(executor)
    assert outcome.measurement is not None
    assert outcome.provenance is not None
    assert outcome.provenance.virtual_time
    files = AttemptFiles(attempts_root, job.uid)
    assert files.outcome() == outcome
    assert "Application startup complete" in files.log_text("server")
    runner = files.runner()
    assert runner is not None
    assert runner.pid == os.getpid()


def test_trials_side_by_side_keep_their_words_apart(attempts_root: Path) -> None:
    executor = VirtualExecutor(attempts_root, attempts_root.parent / "templates", 4)
    flags = ["--first-stranger", "--second-stranger", "--third-stranger", "--fourth-stranger"]
    before = sys.stderr
    for number, flag in enumerate(flags):
        job = simulated_job(f"apart-{number}-1")
        role = job.plan.roles["server"].model_copy(update={"argv": (flag, "1")})
        plan = job.plan.model_copy(update={"roles": {"server": role}})
        executor.submit(job.model_copy(update={"plan": plan}))
    assert eventually(lambda: len(executor.collect(0.1)) == len(flags))
    failures = {outcome.uid: outcome.failure for outcome in executor.collect(0.0)}
    for number, flag in enumerate(flags):
        failure = failures[f"apart-{number}-1"]
        assert failure is not None
        assert (failure.failure_class, failure.exit_code) == (FailureClass.INVALID_CONFIG, 2)
        assert [other in failure.log_tail for other in flags] == [other == flag for other in flags]
    assert sys.stderr is before


def test_template_of_a_real_server_is_refused_in_words(attempts_root: Path) -> None:
    executor = VirtualExecutor(attempts_root, attempts_root.parent / "templates", 1)
    job = simulated_job("real-server-0-1")
    deployment = job.deployment.model_copy(update={"template": "llama-cpp"})
    executor.submit(job.model_copy(update={"deployment": deployment}))
    failure = collected(executor).failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (Phase.PLACE, FailureClass.INFRASTRUCTURE)
    assert "virtual time" in failure.summary
