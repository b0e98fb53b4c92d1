"""What every `TrialExecutor` promises. A subclass per executor gives `make` and `lose_runner`."""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from autotune.domain.failure import FailureClass
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.engine.ports import TrialExecutor
from autotune.errors import Unavailable
from tests.workers.scripted_attempt import scripted_job
from workers.attempt_files import AttemptFiles
from workers.marked_processes import marked

SLOTS = 2
PATIENCE_S = 60.0  # for what takes a second on an idle machine
_numbers = count()


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true within `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def collected(executor: TrialExecutor) -> TrialOutcome:
    """The one outcome that is due."""
    deadline = time.monotonic() + PATIENCE_S
    outcomes: Sequence[TrialOutcome] = ()
    while not outcomes and time.monotonic() < deadline:
        outcomes = executor.collect(1.0)
    (outcome,) = outcomes
    return outcome


class ExecutorContract(ABC):
    """Attempts are played by `tests.workers.scripted_attempt`."""

    root: Path

    @abstractmethod
    def make(self) -> TrialExecutor:
        """An executor with `SLOTS` slots over `root`, as a dispatcher makes one when it starts."""

    @abstractmethod
    def lose_runner(self, executor: TrialExecutor, uid: str) -> None:
        """Kill the process that runs the attempt, with SIGKILL."""

    @pytest.fixture
    def executor(self, attempts_root: Path) -> Iterator[TrialExecutor]:
        self.root = attempts_root
        executor = self.make()
        yield executor
        executor.close()

    def job(self, script: str) -> TrialJob:
        """A job with a uid that no other test has."""
        return scripted_job(f"{type(self).__name__.lower()}-{next(_numbers)}", script)

    def files(self, job: TrialJob) -> AttemptFiles:
        return AttemptFiles(self.root, job.uid)

    def starts(self, job: TrialJob) -> int:
        """How often the attempt was begun."""
        path = self.files(job).folder / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def processes(self, job: TrialJob) -> dict[int, str]:
        return marked(self.files(job).root_text, job.uid)

    def runs(self, job: TrialJob) -> bool:
        runner = self.files(job).runner()
        return runner is not None and runner.is_running and bool(self.processes(job))

    def let_end(self, job: TrialJob) -> None:
        """Its worker may not even have begun: workers start in any order."""
        folder = self.files(job).folder
        assert eventually(folder.is_dir), f"{job.uid} never began"
        (folder / "go").touch()

    # --- outcomes ---------------------------------------------------------------------------

    def test_measurement_comes_back(self, executor: TrialExecutor) -> None:
        job = self.job("measure")
        executor.submit(job)
        outcome = collected(executor)
        assert outcome.uid == job.uid
        assert outcome.measurement is not None
        assert outcome == self.files(job).outcome()
        executor.acknowledge(job.uid)

    def test_hosts_have_the_names_of_outcomes(self, executor: TrialExecutor) -> None:
        assert list(executor.hosts()) == [socket.gethostname()]

    def test_failure_of_the_candidate_comes_back(self, executor: TrialExecutor) -> None:
        job = self.job("crash")
        executor.submit(job)
        outcome = collected(executor)
        assert outcome.failure is not None
        assert outcome.failure.failure_class.blames_candidate
        executor.acknowledge(job.uid)

    def test_outcome_comes_again_until_it_is_acknowledged(self, executor: TrialExecutor) -> None:
        job = self.job("measure")
        executor.submit(job)
        assert collected(executor) == collected(executor)
        executor.acknowledge(job.uid)
        executor.acknowledge(job.uid)
        assert executor.collect(0.1) == []

    def test_collect_gives_nothing_while_nothing_has_ended(self, executor: TrialExecutor) -> None:
        assert executor.collect(0.0) == []
        job = self.job("wait")
        executor.submit(job)
        assert executor.collect(0.1) == []
        executor.cancel(job.uid)

    def test_outcomes_come_in_the_order_of_their_ends(self, executor: TrialExecutor) -> None:
        slow, quick = self.job("wait"), self.job("measure")
        executor.submit(slow)
        executor.submit(quick)
        assert collected(executor).uid == quick.uid
        executor.acknowledge(quick.uid)
        self.let_end(slow)
        assert collected(executor).uid == slow.uid
        executor.acknowledge(slow.uid)

    def test_outcome_that_is_not_acknowledged_hides_no_other_one(self, executor: TrialExecutor) -> None:
        jobs = [self.job("measure"), self.job("measure")]
        for job in jobs:
            executor.submit(job)
        assert eventually(lambda: len(executor.collect(0.1)) == len(jobs))
        for job in jobs:
            executor.acknowledge(job.uid)

    # --- at most once -----------------------------------------------------------------------

    def test_second_submission_starts_nothing(self, executor: TrialExecutor) -> None:
        job = self.job("wait")
        executor.submit(job)
        executor.submit(job)
        other = self.make()
        other.submit(job)
        assert eventually(lambda: self.runs(job))
        self.let_end(job)
        assert collected(executor) == collected(other)
        assert self.starts(job) == 1
        executor.acknowledge(job.uid)
        other.acknowledge(job.uid)
        other.close()

    # --- lost workers -----------------------------------------------------------------------

    def test_killed_runner_is_an_infrastructure_failure(self, executor: TrialExecutor) -> None:
        job = self.job("wait")
        executor.submit(job)
        assert eventually(lambda: self.runs(job))
        self.lose_runner(executor, job.uid)
        self.assert_lost(collected(executor))
        assert eventually(lambda: not self.processes(job))
        executor.acknowledge(job.uid)

    @pytest.mark.parametrize("script", ["die", "never-begin", "raise"])
    def test_runner_that_ends_without_outcome_is_an_infrastructure_failure(
        self, executor: TrialExecutor, script: str
    ) -> None:
        job = self.job(script)
        executor.submit(job)
        self.assert_lost(collected(executor))
        executor.acknowledge(job.uid)
        assert executor.collect(0.0) == []

    def assert_lost(self, outcome: TrialOutcome) -> None:
        assert outcome.failure is not None
        assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
        assert outcome.failure.summary

    # --- restart of the dispatcher ----------------------------------------------------------

    def test_running_attempt_is_taken_over(self, executor: TrialExecutor) -> None:
        job = self.job("wait")
        executor.submit(job)
        assert eventually(lambda: self.runs(job))
        executor.close()
        successor = self.make()
        assert successor.adopt(job)
        assert successor.adopt(job)
        self.let_end(job)
        assert collected(successor).measurement is not None
        assert self.starts(job) == 1
        successor.acknowledge(job.uid)
        successor.close()

    def test_attempt_that_ended_meanwhile_is_taken_over(self, executor: TrialExecutor) -> None:
        job = self.job("measure")
        executor.submit(job)
        executor.close()
        assert eventually(lambda: self.files(job).outcome() is not None)
        successor = self.make()
        assert successor.adopt(job)
        assert collected(successor).measurement is not None
        successor.acknowledge(job.uid)
        successor.close()

    def test_unknown_attempt_is_not_taken_over(self, executor: TrialExecutor) -> None:
        job = self.job("measure")
        assert not executor.adopt(job)
        assert executor.collect(0.0) == []
        assert self.starts(job) == 0

    # --- cancel -----------------------------------------------------------------------------

    def test_cancel_leaves_no_process_and_no_outcome(self, executor: TrialExecutor) -> None:
        job = self.job("wait")
        executor.submit(job)
        assert eventually(lambda: self.runs(job))
        runner = self.files(job).runner()
        assert runner is not None
        executor.cancel(job.uid)
        assert not self.processes(job)
        assert eventually(lambda: not runner.is_running)
        assert executor.collect(0.1) == []
        executor.cancel(job.uid)

    def test_cancel_ends_an_attempt_of_an_earlier_dispatcher(self, executor: TrialExecutor) -> None:
        job = self.job("wait")
        executor.submit(job)
        assert eventually(lambda: self.runs(job))
        executor.close()
        successor = self.make()
        successor.cancel(job.uid)
        assert not self.processes(job)
        assert successor.collect(0.0) == []
        successor.close()

    def test_cancel_right_after_submission_starts_nothing_later(self, executor: TrialExecutor) -> None:
        job = self.job("wait")
        executor.submit(job)
        executor.cancel(job.uid)
        assert executor.collect(0.3) == []
        assert not self.processes(job)

    def test_cancel_of_an_unknown_attempt_does_nothing(self, executor: TrialExecutor) -> None:
        executor.cancel("nobody-0-1")
        assert not (self.root / "nobody-0-1").exists()

    # --- capacity ---------------------------------------------------------------------------

    def test_capacity_counts_attempts_until_they_are_acknowledged(self, executor: TrialExecutor) -> None:
        assert eventually(lambda: executor.capacity() == SLOTS)
        first, second = self.job("wait"), self.job("measure")
        executor.submit(first)
        assert executor.capacity() == SLOTS - 1
        executor.submit(second)
        assert executor.capacity() == 0
        executor.submit(second)  # known: no room is needed
        with pytest.raises(Unavailable, match="slots"):
            executor.submit(self.job("measure"))
        assert collected(executor).uid == second.uid
        executor.acknowledge(second.uid)
        assert eventually(lambda: executor.capacity() == SLOTS - 1)
        executor.cancel(first.uid)
        assert eventually(lambda: executor.capacity() == SLOTS)
