"""Attempts as processes of this host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.domain.failure import FailureClass, Phase
from autotune.engine.ports import TrialExecutor
from autotune.errors import Unavailable
from tests.contracts.executor_contract import SLOTS, ExecutorContract, collected, eventually
from tests.workers.scripted_attempt import scripted_job
from tests.workers.simulated_job import simulated_job
from workers.attempt_files import AttemptFiles
from workers.local_executor import LocalExecutor
from workers.marked_processes import marked

SCRIPTED = [sys.executable, "-P", "-m", "tests.workers.scripted_attempt"]


@pytest.fixture
def attempts_root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "attempts"
    yield root
    assert eventually(lambda: marked(str(root.resolve())) == {}), "a test left processes"


def local(root: Path, slots: int = SLOTS, grace_s: float = 0.3) -> LocalExecutor:
    return LocalExecutor(root, root.parent / "templates", slots, SCRIPTED, start_grace_s=grace_s)


class TestLocal(ExecutorContract):
    def make(self) -> TrialExecutor:
        return local(self.root)

    def lose_runner(self, executor: TrialExecutor, uid: str) -> None:
        runner = AttemptFiles(self.root, uid).runner()
        assert runner is not None
        os.kill(runner.pid, signal.SIGKILL)


def test_attempt_outlives_its_dispatcher(attempts_root: Path) -> None:
    job = scripted_job("outlives-0-1", "wait")
    files = AttemptFiles(attempts_root, job.uid)
    dispatcher = subprocess.Popen([sys.executable, "-c", SUBMIT, str(attempts_root), job.model_dump_json()])
    try:
        assert eventually(lambda: files.runner() is not None)
    finally:
        dispatcher.kill()
        dispatcher.wait()
    successor = local(attempts_root)
    assert successor.adopt(job)
    (files.folder / "go").touch()
    assert collected(successor).measurement is not None


SUBMIT = """
import sys, time
from pathlib import Path
from autotune.domain.job import TrialJob
from tests.workers.test_executor_local import local
local(Path(sys.argv[1])).submit(TrialJob.model_validate_json(sys.argv[2]))
time.sleep(600)
"""


def test_job_without_runner_is_not_taken_over_and_can_never_start(attempts_root: Path) -> None:
    job = scripted_job("orphan-0-1", "measure")
    files = AttemptFiles(attempts_root, job.uid)
    files.write_job(job)  # its dispatcher died before it started the runner
    executor = local(attempts_root)
    assert not executor.adopt(job)
    late = subprocess.run(
        [*SCRIPTED, "--attempts", attempts_root, "--templates", attempts_root, job.uid],
        capture_output=True,
        check=False,
    )
    assert late.returncode == 3
    assert not (files.folder / "starts").exists()
    assert executor.adopt(job)  # asked again, it has ended
    assert collected(executor).failure is not None


def test_submission_over_a_job_without_runner_ends_after_a_grace(attempts_root: Path) -> None:
    job = scripted_job("orphan-1-1", "measure")
    AttemptFiles(attempts_root, job.uid).write_job(job)
    executor = local(attempts_root)
    executor.submit(job)
    failure = collected(executor).failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (Phase.PLACE, FailureClass.INFRASTRUCTURE)


def test_dead_runner_leaves_its_exit_code_and_its_last_words(attempts_root: Path) -> None:
    executor = local(attempts_root)
    executor.submit(scripted_job("words-0-1", "raise"))
    executor.submit(scripted_job("words-1-1", "never-begin"))
    assert eventually(lambda: len(executor.collect(0.1)) == 2)
    failures = {o.uid: o.failure for o in executor.collect(0.0)}
    spoken, silent = failures["words-0-1"], failures["words-1-1"]
    assert spoken is not None
    assert (spoken.exit_code, spoken.decisive_line) == (1, "RuntimeError: the script says so")
    assert silent is not None
    assert (silent.exit_code, silent.phase) == (7, Phase.PLACE)


def test_damaged_outcome_is_an_infrastructure_failure(attempts_root: Path) -> None:
    job = scripted_job("damaged-0-1", "wait")
    executor = local(attempts_root)
    executor.submit(job)
    files = AttemptFiles(attempts_root, job.uid)
    (files.folder / "outcome.json").write_text('{"uid": "damaged-0-1"}')
    failure = collected(executor).failure
    assert failure is not None
    assert "outcome.json" in failure.summary
    executor.cancel(job.uid)


def test_runner_gets_no_environment_of_ours(attempts_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    job = scripted_job("clean-0-1", "wait")
    executor = local(attempts_root)
    executor.submit(job)
    files = AttemptFiles(attempts_root, job.uid)
    assert eventually(lambda: files.runner() is not None)
    runner = files.runner()
    assert runner is not None
    entries = Path(f"/proc/{runner.pid}/environ").read_bytes().split(b"\0")
    assert {entry.split(b"=")[0] for entry in entries if entry} <= {b"PATH", b"LANG", b"HOME", b"LC_CTYPE"}
    assert os.getsid(runner.pid) == runner.pid
    executor.cancel(job.uid)


def test_command_that_cannot_be_started_is_unavailable_and_may_be_submitted_again(attempts_root: Path) -> None:
    job = scripted_job("nothing-0-1", "measure")
    broken = LocalExecutor(attempts_root, attempts_root, 1, ["/nonexistent/python"])
    with pytest.raises(Unavailable, match="nothing-0-1"):
        broken.submit(job)
    assert broken.capacity() == 1
    executor = local(attempts_root)
    executor.submit(job)
    assert collected(executor).measurement is not None


def test_real_attempt_is_measured_and_cancelled(attempts_root: Path) -> None:
    executor = LocalExecutor(attempts_root, attempts_root.parent / "templates", 2)
    measured, cancelled = simulated_job("real-0-1"), simulated_job("real-1-1")
    executor.submit(measured)
    assert collected(executor).measurement is not None
    executor.acknowledge(measured.uid)
    executor.submit(cancelled)
    files = AttemptFiles(attempts_root, cancelled.uid)
    assert eventually(lambda: bool(marked(files.root_text, cancelled.uid)))
    executor.cancel(cancelled.uid)
    assert marked(files.root_text, cancelled.uid) == {}
    assert executor.collect(0.1) == []
