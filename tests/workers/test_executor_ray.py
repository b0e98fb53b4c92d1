"""Attempts as Ray actors, on one cluster of two nodes for all tests of this file."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from autotune.domain.device import HostReading
from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import TrialJob
from autotune.engine.ports import TrialExecutor
from autotune.errors import Unavailable
from tests.contracts.executor_contract import SLOTS, ExecutorContract, collected, eventually
from tests.workers.scripted_attempt import scripted_job
from tests.workers.simulated_job import simulated_job
from workers.attempt_files import AttemptFiles
from workers.devices.this_host import read_host
from workers.marked_processes import marked
from workers.ray_executor import RUN_ATTEMPT, RayExecutor
from workers.ray_head import RayHead, start_worker_node
from workers.ray_places import hosts_with_room

pytestmark = [pytest.mark.ray]

SCRIPTED = "tests.workers.scripted_attempt:run_attempt"


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """The head and a second node, with one slot each."""
    run_dir = tmp_path_factory.mktemp("ray")
    head = RayHead(run_dir, slots=1, resources={"host:a": 1})
    head.start()
    other = start_worker_node(head, run_dir, slots=1, host="b")
    assert SLOTS == 2
    yield head
    other.stop()
    head.stop()


@pytest.fixture
def attempts_root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "attempts"
    yield root
    assert eventually(lambda: marked(str(root.resolve())) == {}), "a test left processes"


def connect(
    head: RayHead,
    root: Path,
    *,
    namespace: str = "autotune",
    placement_s: float = 60.0,
    leftover_s: float = 60.0,
    run_attempt: str = SCRIPTED,
) -> RayExecutor:
    return RayExecutor(
        head.address,
        root,
        root.parent / "templates",
        head.token_file,
        namespace=namespace,
        placement_s=placement_s,
        leftover_s=leftover_s,
        run_attempt=run_attempt,
    )


class TestRay(ExecutorContract):
    @pytest.fixture(autouse=True)
    def _cluster(self, head: RayHead) -> None:
        self.head = head

    def make(self) -> TrialExecutor:
        return connect(self.head, self.root)

    def lose_runner(self, executor: TrialExecutor, uid: str) -> None:
        runner = AttemptFiles(self.root, uid).runner()
        assert runner is not None
        os.kill(runner.pid, signal.SIGKILL)


@pytest.fixture
def executor(head: RayHead, attempts_root: Path) -> Iterator[RayExecutor]:
    executor = connect(head, attempts_root)
    assert eventually(lambda: executor.capacity() == SLOTS)
    yield executor
    executor.close()


def started(root: Path, job: TrialJob) -> bool:
    return AttemptFiles(root, job.uid).runner() is not None


def let_end(root: Path, job: TrialJob) -> None:
    (root / job.uid / "go").touch()


def test_trials_run_on_both_nodes(executor: RayExecutor, attempts_root: Path) -> None:
    jobs = [scripted_job(f"nodes-{n}-1", "wait") for n in range(SLOTS)]
    for job in jobs:
        executor.submit(job)
    assert eventually(lambda: all(started(attempts_root, job) for job in jobs))
    nodes = {json.loads((attempts_root / job.uid / "ray.json").read_text())["node_id"] for job in jobs}
    assert len(nodes) == SLOTS
    for job in jobs:
        let_end(attempts_root, job)
    assert eventually(lambda: len(executor.collect(0.5)) == SLOTS)
    for job in jobs:
        executor.acknowledge(job.uid)


def test_attempt_outlives_its_dispatcher(head: RayHead, attempts_root: Path) -> None:
    job = scripted_job("outlives-0-1", "wait")
    arguments = [head.address, str(attempts_root), str(head.token_file), job.model_dump_json()]
    dispatcher = subprocess.Popen([sys.executable, "-c", SUBMIT, *arguments])
    try:
        assert eventually(lambda: started(attempts_root, job))
    finally:
        dispatcher.kill()
        dispatcher.wait()
    successor = connect(head, attempts_root)
    assert successor.adopt(job)
    let_end(attempts_root, job)
    assert collected(successor).measurement is not None
    successor.acknowledge(job.uid)
    successor.close()


SUBMIT = """
import sys, time
from pathlib import Path
from autotune.domain.job import TrialJob
from workers.ray_executor import RayExecutor
address, root, token, job = sys.argv[1:]
run = "tests.workers.scripted_attempt:run_attempt"
executor = RayExecutor(address, Path(root), Path(root), Path(token), run_attempt=run)
executor.submit(TrialJob.model_validate_json(job))
time.sleep(600)
"""


def test_outcome_on_disk_outlives_its_actor(executor: RayExecutor, attempts_root: Path) -> None:
    job = scripted_job("spooled-0-1", "measure")
    executor.submit(job)
    runner_file = AttemptFiles(attempts_root, job.uid)
    assert eventually(lambda: runner_file.outcome() is not None)
    runner = runner_file.runner()
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)
    assert collected(executor).measurement is not None
    executor.acknowledge(job.uid)
    assert executor.adopt(job)
    assert collected(executor).measurement is not None
    executor.acknowledge(job.uid)


def test_attempt_that_no_node_takes_is_an_infrastructure_failure(
    executor: RayExecutor, head: RayHead, attempts_root: Path
) -> None:
    others = connect(head, attempts_root, namespace="others")
    occupants = [scripted_job(f"occupant-{n}-1", "wait") for n in range(SLOTS)]
    for occupant in occupants:
        others.submit(occupant)
    assert eventually(lambda: all(started(attempts_root, job) for job in occupants))
    hasty = connect(head, attempts_root, placement_s=0.5)
    job = scripted_job("nowhere-0-1", "measure")
    hasty.submit(job)
    failure = collected(hasty).failure
    assert failure is not None
    assert (failure.phase, failure.failure_class) == (Phase.PLACE, FailureClass.INFRASTRUCTURE)
    assert "no node took" in failure.summary
    hasty.acknowledge(job.uid)
    for occupant in occupants:
        others.cancel(occupant.uid)
    assert not started(attempts_root, job)


def test_slot_of_an_outcome_that_nobody_acknowledged_is_released(head: RayHead, attempts_root: Path) -> None:
    job = scripted_job("leftover-0-1", "measure")
    first = connect(head, attempts_root)
    first.submit(job)
    assert collected(first).uid == job.uid
    first.close()  # the dispatcher died after it had stored the outcome
    successor = connect(head, attempts_root, leftover_s=0.0)
    assert eventually(lambda: successor.capacity() == SLOTS)
    successor.close()


def test_running_attempt_of_nobody_keeps_its_slot(head: RayHead, attempts_root: Path) -> None:
    job = scripted_job("leftover-1-1", "wait")
    first = connect(head, attempts_root)
    assert eventually(lambda: first.capacity() == SLOTS)
    first.submit(job)
    assert eventually(lambda: started(attempts_root, job))
    first.close()
    successor = connect(head, attempts_root, leftover_s=0.0)
    assert successor.capacity() == SLOTS - 1
    let_end(attempts_root, job)
    assert eventually(lambda: successor.capacity() == SLOTS)
    successor.close()


def test_other_code_on_the_worker_is_an_infrastructure_failure(head: RayHead, attempts_root: Path) -> None:
    executor = connect(head, attempts_root, run_attempt="tests.workers.no_such_module:run_attempt")
    job = scripted_job("code-0-1", "measure")
    executor.submit(job)
    failure = collected(executor).failure
    assert failure is not None
    assert failure.failure_class is FailureClass.INFRASTRUCTURE
    executor.acknowledge(job.uid)
    executor.close()


def test_absent_cluster_is_unavailable_at_once(attempts_root: Path) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        RayExecutor("127.0.0.1:1", attempts_root, attempts_root)


def test_wrong_token_is_refused(head: RayHead, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    words = subprocess.run(
        [sys.executable, "-c", STRANGER, head.address, str(wrong)], capture_output=True, text=True, check=False
    )
    assert "Unavailable" in words.stderr


STRANGER = """
import os, sys
from pathlib import Path
os.environ["RAY_NUM_REDIS_GET_RETRIES"] = "2"  # else it tries for 20 s
from workers.ray_executor import RayExecutor
RayExecutor(sys.argv[1], Path("/tmp"), Path("/tmp"), Path(sys.argv[2]))
"""


def test_real_attempt_is_measured(head: RayHead, attempts_root: Path) -> None:
    executor = connect(head, attempts_root, run_attempt=RUN_ATTEMPT)
    job = simulated_job("real-0-1")
    executor.submit(job)
    outcome = collected(executor)
    assert outcome.failure is None
    assert outcome.provenance is not None
    executor.acknowledge(job.uid)
    executor.close()


@pytest.mark.parametrize("how", ["kill the worker", "kill worker and supervisor", "cancel"])
def test_servers_of_a_real_attempt_end_with_it(head: RayHead, attempts_root: Path, how: str) -> None:
    executor = connect(head, attempts_root, run_attempt=RUN_ATTEMPT)
    job = simulated_job("real-1-1")
    files = AttemptFiles(attempts_root, job.uid)
    executor.submit(job)
    assert eventually((files.folder / "load.json").exists)
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in marked(files.root_text, job.uid)]
    assert environments
    assert not any(b"RAY_" in environment for environment in environments)
    if how == "cancel":
        executor.cancel(job.uid)
        assert marked(files.root_text, job.uid) == {}
    else:
        runner = files.runner()
        assert runner is not None
        if how == "kill worker and supervisor":
            commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in marked(files.root_text, job.uid)}
            os.kill(next(pid for pid, words in commands.items() if b"workers.supervisor" in words), signal.SIGKILL)
        os.kill(runner.pid, signal.SIGKILL)
        failure = collected(executor).failure
        assert failure is not None
        assert failure.failure_class is FailureClass.INFRASTRUCTURE
        assert marked(files.root_text, job.uid) == {}, "the outcome came before the end of the attempt's processes"
        executor.acknowledge(job.uid)
    executor.close()


def test_running_head_is_taken_over_by_its_successor(head: RayHead) -> None:
    again = RayHead(head.token_file.parent, slots=1, resources={"host:a": 1})
    assert again.start() == head.address
    assert again.alive()
    assert head.token_file.stat().st_mode & 0o777 == 0o600


def node_of(root: Path, job: TrialJob) -> str:
    return str(json.loads((root / job.uid / "ray.json").read_text())["node_id"])


def test_a_lost_trial_is_placed_on_another_host_where_one_is_free(executor: RayExecutor, attempts_root: Path) -> None:
    """Both nodes are of this machine: Ray's id tells them apart, as a host's name does elsewhere."""
    assert executor.hosts() == [socket.gethostname()]
    first = scripted_job("avoids-0-1", "wait")
    executor.submit(first)
    assert eventually(lambda: started(attempts_root, first))
    lost_on = node_of(attempts_root, first)
    let_end(attempts_root, first)
    assert eventually(lambda: len(executor.collect(0.5)) == 1)
    executor.acknowledge(first.uid)
    assert eventually(lambda: executor.capacity() == SLOTS)
    again = [scripted_job(f"avoids-0-{n}", "wait").model_copy(update={"avoid_hosts": (lost_on,)}) for n in (2, 3)]
    executor.submit(again[0])
    assert eventually(lambda: started(attempts_root, again[0]))
    assert node_of(attempts_root, again[0]) != lost_on
    executor.submit(again[1])  # no other host is free now: better there than not at all
    assert eventually(lambda: started(attempts_root, again[1]))
    assert node_of(attempts_root, again[1]) == lost_on
    for job in again:
        executor.cancel(job.uid)


def test_an_attempt_runs_on_the_host_that_its_job_names(executor: RayExecutor, attempts_root: Path) -> None:
    nodes = [node["NodeID"] for node in executor._nodes()]
    assert len(nodes) == SLOTS
    for number, node in enumerate(nodes):
        job = scripted_job(f"named-{number}-1", "wait").model_copy(update={"host": node})
        executor.submit(job)
        assert eventually(partial(started, attempts_root, job))
        assert json.loads((attempts_root / job.uid / "ray.json").read_text())["node_id"] == node
        let_end(attempts_root, job)
        assert collected(executor).measurement is not None
        executor.acknowledge(job.uid)
    lost = scripted_job("named-9-1", "wait").model_copy(update={"host": "node-of-nobody"})
    with pytest.raises(Unavailable, match="host node-of-nobody is not in the cluster"):
        executor.submit(lost)
    assert executor.adopt(lost) is False


def test_a_host_with_room_is_one_with_a_free_slot(executor: RayExecutor, attempts_root: Path) -> None:
    here = socket.gethostname()
    assert list(executor.hosts_with_room()) == [here]
    jobs = [scripted_job(f"room-{n}-1", "wait") for n in range(SLOTS)]
    executor.submit(jobs[0].model_copy(update={"host": here}))
    assert list(executor.hosts_with_room()) == [here]
    executor.submit(jobs[1])
    assert list(executor.hosts_with_room()) == []
    assert eventually(lambda: all(started(attempts_root, job) for job in jobs))
    for job in jobs:
        let_end(attempts_root, job)
    assert eventually(lambda: len(executor.collect(0.5)) == SLOTS)
    for job in jobs:
        executor.acknowledge(job.uid)


def test_each_host_is_asked_for_its_own_devices(executor: RayExecutor, attempts_root: Path, tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text("devices: simulated\ncount: 4\n")
    here = socket.gethostname()
    found = executor.on_host(here, read_host, tmp_path, attempts_root, timeout_s=60)
    reading = HostReading.model_validate_json(found)
    assert (reading.inventory.host, len(reading.inventory.devices)) == (here, 4)
    (tmp_path / "host.yaml").write_text("devices: gpu\n")
    with pytest.raises(Unavailable, match=r"^host\.yaml has 1 problem; host\.yaml.*devices: "):
        executor.on_host(here, read_host, tmp_path, attempts_root, timeout_s=60)
    with pytest.raises(Unavailable, match="node-of-nobody is not in the cluster"):
        executor.on_host("node-of-nobody", read_host, tmp_path, attempts_root, timeout_s=60)


def test_room_by_host() -> None:
    nodes = [{"NodeManagerHostname": host, "Resources": {"slot": slots}} for host, slots in (("a", 2), ("b", 1))]
    assert hosts_with_room(nodes, "slot", Counter()) == ["a", "b"]
    assert hosts_with_room(nodes, "slot", Counter({"b": 1})) == ["a"]
    assert hosts_with_room(nodes, "slot", Counter({None: 1})) == ["a"], "it may be on any of them"
    assert hosts_with_room(nodes, "slot", Counter({"a": 1, None: 1})) == []
