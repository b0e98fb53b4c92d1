"""What stays when parts of an attempt are killed: nothing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from autotune.domain.failure import FailureClass, Phase
from tests.workers.launching import endless, is_alive, job, left, number_in, start_runner, template, wait_for
from workers.attempt import ALREADY_STARTED_CODE
from workers.attempt_files import AttemptFiles
from workers.marked_processes import process_stat
from workers.sweep import sweep, sweep_all

UID = "s1-t0-a1"
CLEAN_S = 10.0  # what is promised; 1 to 2 s is usual


def under_load(root: Path) -> bool:
    """Whether the load process has begun."""
    return (root / UID / "load.json").exists() and "completions" in AttemptFiles(root, UID).log_text("server")


def supervisor_of(root: Path) -> int:
    """The parent of the server."""
    server = number_in(root / UID / "pid")
    assert server is not None
    stat = process_stat(server)
    assert stat is not None
    return stat.parent


@pytest.mark.parametrize("orphan", ["setsid", "titled", "scrubbed"])
def test_killing_the_runners_process_group_leaves_nothing(tmp_path: Path, orphan: str) -> None:
    root = tmp_path / "attempts"
    one = job("--orphan", orphan, "--ignore-term", workload=endless())
    runner = start_runner(root, tmp_path / "templates", one)
    wait_for(lambda: under_load(root))
    server, grandchild = number_in(root / UID / "pid"), number_in(root / UID / "orphan")
    assert server is not None
    assert grandchild is not None
    assert is_alive(grandchild)

    os.killpg(runner.pid, signal.SIGKILL)
    runner.wait()

    wait_for(lambda: not left(root) and not is_alive(server) and not is_alive(grandchild), CLEAN_S)
    assert AttemptFiles(root, UID).outcome() is None


@pytest.mark.parametrize("orphan", ["setsid", "titled", "scrubbed"])
def test_killing_the_supervisor_ends_the_attempt_and_its_orphans(tmp_path: Path, orphan: str) -> None:
    root = tmp_path / "attempts"
    runner = start_runner(root, tmp_path / "templates", job("--orphan", orphan, workload=endless()))
    wait_for(lambda: under_load(root))
    grandchild = number_in(root / UID / "orphan")
    assert grandchild is not None
    assert is_alive(grandchild)

    os.kill(supervisor_of(root), signal.SIGKILL)

    assert runner.wait(CLEAN_S) == 0
    assert left(root) == {}
    assert not is_alive(grandchild)
    outcome = AttemptFiles(root, UID).outcome()
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
    assert "supervisor" in outcome.failure.summary


@pytest.mark.parametrize("orphan", ["setsid", "titled", "scrubbed"])
def test_a_sweep_ends_what_outlived_runner_and_supervisor(tmp_path: Path, orphan: str) -> None:
    root = tmp_path / "attempts"
    runner = start_runner(root, tmp_path / "templates", job("--orphan", orphan, workload=endless()))
    wait_for(lambda: under_load(root))
    grandchild = number_in(root / UID / "orphan")
    assert grandchild is not None
    assert sweep_all(root) == {}, "an attempt whose runner lives is left alone"

    supervisor = supervisor_of(root)
    os.kill(supervisor, signal.SIGSTOP)  # so that it cannot react to the runner's end
    os.killpg(runner.pid, signal.SIGKILL)
    runner.wait()
    os.kill(supervisor, signal.SIGKILL)
    assert is_alive(grandchild)
    assert sweep_all(root, keep=[UID]) == {}
    assert sweep_all(tmp_path / "another") == {}
    assert is_alive(grandchild)

    assert sweep_all(root) == {UID: set()}
    assert not is_alive(grandchild)
    assert left(root) == {}
    assert sweep(root, UID) == set()


def test_killing_the_server_under_load_is_a_crash_at_once(tmp_path: Path) -> None:
    root = tmp_path / "attempts"
    runner = start_runner(root, tmp_path / "templates", job(workload=endless()))
    wait_for(lambda: under_load(root))
    server = number_in(root / UID / "pid")
    assert server is not None

    os.kill(server, signal.SIGKILL)

    assert runner.wait(CLEAN_S) == 0
    outcome = AttemptFiles(root, UID).outcome()
    assert outcome is not None
    failure = outcome.failure
    assert failure is not None
    assert failure.failure_class is FailureClass.CRASH
    assert failure.phase in {Phase.WARM_UP, Phase.LOAD}
    assert failure.exit_code == -signal.SIGKILL
    assert left(root) == {}


def test_sigterm_cancels_the_attempt(tmp_path: Path) -> None:
    root = tmp_path / "attempts"
    one = job("--orphan", "setsid", "--ignore-term", workload=endless())
    runner = start_runner(root, tmp_path / "templates", one)
    wait_for(lambda: under_load(root))

    runner.terminate()

    assert runner.wait(CLEAN_S) == 0
    assert left(root) == {}
    outcome = AttemptFiles(root, UID).outcome()
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.summary == "cancelled"


def test_sigterm_to_the_supervisor_alone_ends_the_servers(tmp_path: Path) -> None:
    root = tmp_path / "attempts"
    runner = start_runner(root, tmp_path / "templates", job("--orphan", "setsid", workload=endless()))
    wait_for(lambda: under_load(root))
    os.kill(supervisor_of(root), signal.SIGTERM)
    assert runner.wait(CLEAN_S) == 0
    assert left(root) == {}
    outcome = AttemptFiles(root, UID).outcome()
    assert outcome is not None
    assert outcome.failure is not None
    assert not outcome.failure.failure_class.blames_candidate


def test_the_command_refuses_a_second_start(tmp_path: Path) -> None:
    root = tmp_path / "attempts"
    one = job("--exit", "1")
    assert start_runner(root, tmp_path / "templates", one).wait(30) == 0
    first = AttemptFiles(root, UID).outcome()
    assert start_runner(root, tmp_path / "templates", one).wait(30) == ALREADY_STARTED_CODE
    assert AttemptFiles(root, UID).outcome() == first


def test_a_crash_is_told_while_a_deaf_grandchild_still_runs(tmp_path: Path) -> None:
    root = tmp_path / "attempts"
    begun = time.monotonic()
    one = job("--orphan", "setsid", "--exit", "7")
    assert start_runner(root, tmp_path / "templates", one, template()).wait(30) == 0
    outcome = AttemptFiles(root, UID).outcome()
    assert outcome is not None
    assert outcome.failure is not None
    assert outcome.failure.exit_code == 7
    assert time.monotonic() - begun < template().deadlines.ready_s
    assert left(root) == {}
