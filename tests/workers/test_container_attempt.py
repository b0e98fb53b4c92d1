"""Whole attempts in containers, on a docker that keeps the rules of the real one."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from autotune.domain.failure import FailureClass, Phase
from autotune.domain.launcher import Container, Mount
from autotune.domain.template import LaunchTemplate, RoleTemplate
from tests.workers.launching import (
    FAKE_SERVER,
    QUICK,
    OneTemplate,
    endless,
    job,
    left,
    number_in,
    run,
    start_runner,
    wait_for,
)
from tests.workers.launching import template as process_template
from workers.attempt import run_attempt
from workers.attempt_files import AttemptFiles
from workers.container_end import end_containers, may_have_containers
from workers.marked_processes import is_running, process_stat
from workers.sweep import sweep_all

FAKE_DOCKER = Path(__file__).with_name("fake_docker.py")
IMAGE = "quay.io/fake/serve:1"
ARGV = (
    sys.executable,
    "-S",
    str(FAKE_SERVER),
    "--host",
    "{host}",
    "--port",
    "{port}",
    "--served-model-name",
    "{model}",
)


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    """The client, with its state beside it."""
    state = tmp_path / "docker-state"
    state.mkdir()
    client = tmp_path / "docker"
    client.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE_DOCKER} "$@"\n')
    client.chmod(0o755)
    return client


def in_container(docker: Path, **changes: object) -> LaunchTemplate:
    """The fake server's template, in a container."""
    settings = {"client": str(docker), "image": IMAGE, "client_env": {"FAKE_DOCKER": f"{docker}-state"}, **changes}
    role = RoleTemplate(argv=ARGV, env={"OWN": "1"})
    return process_template().model_copy(
        update={"roles": {"server": role}, "container": Container.model_validate(settings), "deadlines": QUICK}
    )


def containers(docker: Path) -> list[int]:
    """Processes in the place of containers that still run."""
    notes = [json.loads(path.read_text()) for path in Path(f"{docker}-state").glob("c-*.json")]
    return [n["pid"] for n in notes if (s := process_stat(n["pid"])) and is_running(n["pid"], s.started)]


def ran(docker: Path) -> list[str]:
    """The words of the last `docker run`."""
    found: list[str] = json.loads((Path(f"{docker}-state") / "runs.jsonl").read_text().splitlines()[-1])
    return found


def test_a_server_in_a_container_is_measured_and_removed(tmp_path: Path, docker: Path) -> None:
    root = tmp_path / "attempts"
    mount = Mount(host=str(FAKE_SERVER.parent), container="/srv")
    launch = in_container(docker, mounts=[mount.model_dump()], shm_size="64g", ipc="host", user="1000:1000")
    outcome = run(root, job(env={"HCCL_BUFFSIZE": "200"}), launch)
    assert outcome.failure is None
    assert outcome.measurement is not None
    assert outcome.provenance is not None
    assert outcome.provenance.images["server"].startswith("sha256:1111")
    assert "quay.io/fake/serve@sha256:" in outcome.provenance.images["server"]
    words = ran(docker)
    folder = str(root / "s1-t0-a1")
    assert {f"{folder}:{folder}:rw", f"{FAKE_SERVER.parent}:/srv:ro", "HCCL_BUFFSIZE=200", "OWN=1"} <= set(words)
    assert "autotune.attempt=s1-t0-a1" in words
    assert words[words.index("--shm-size") + 1] == "64g"
    assert words[words.index("--ipc") + 1] == "host"
    assert words[words.index("--user") + 1] == "1000:1000"
    launched = outcome.provenance.roles["server"]
    assert launched.image == IMAGE
    assert "{trial_dir}:{trial_dir}:rw" in launched.run
    assert "--name" not in launched.run
    assert containers(docker) == []
    assert left(root) == {}
    assert not may_have_containers(root / "s1-t0-a1")


def test_what_is_in_the_container_has_nothing_of_the_workers_environment(
    tmp_path: Path, docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "only-for-the-worker")
    root, cancelled = tmp_path / "attempts", threading.Event()
    one = job("--deaf", env={"HF_TOKEN": "hf_secret_1234567890"})
    launch = in_container(docker)
    runner = threading.Thread(target=run_attempt, args=(one, root, OneTemplate(launch), cancelled))
    runner.start()
    try:
        wait_for(lambda: number_in(root / one.uid / "pid"))
        environ = Path(f"/proc/{number_in(root / one.uid / 'pid')}/environ").read_bytes()
    finally:
        cancelled.set()
        runner.join()
    names = {entry.split(b"=")[0].decode() for entry in environ.split(b"\0") if entry}
    base = {"PATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "AUTOTUNE_ATTEMPT", "AUTOTUNE_ATTEMPTS_ROOT"}
    assert names == base | {"OWN", "HF_TOKEN"}
    assert b"only-for-the-worker" not in environ
    words = ran(docker)  # command lines can be read by every user of a host
    assert "HF_TOKEN" in words
    assert not any("hf_secret" in word for word in words)


def test_a_refusal_of_the_engine_does_not_blame_the_candidate(tmp_path: Path, docker: Path) -> None:
    words = "could not select device driver"
    env = {"FAKE_DOCKER": f"{docker}-state", "FAKE_DOCKER_REFUSES": words}
    outcome = run(tmp_path / "attempts", job(), in_container(docker, client_env=env))
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
    assert words in (outcome.failure.decisive_line or "")


def test_a_program_that_the_image_lacks_is_the_hosts_fault(tmp_path: Path, docker: Path) -> None:
    launch = in_container(docker)
    role = RoleTemplate(argv=("/no/such/program", "--port", "{port}"))
    outcome = run(tmp_path / "attempts", job(), launch.model_copy(update={"roles": {"server": role}}))
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
    assert "not found" in (outcome.failure.decisive_line or "")


def test_a_server_that_is_killed_in_its_container_ended_by_that_signal(tmp_path: Path, docker: Path) -> None:
    outcome = run(tmp_path / "attempts", job("--die-at-request", "3"), in_container(docker))
    assert outcome.failure is not None
    assert outcome.failure.exit_code == -signal.SIGKILL
    assert "SIGKILL" in outcome.failure.summary
    assert outcome.failure.failure_class is not FailureClass.INFRASTRUCTURE


def test_an_image_that_is_not_there_is_told_before_anything_starts(tmp_path: Path, docker: Path) -> None:
    outcome = run(tmp_path / "attempts", job(), in_container(docker, image="quay.io/fake/other:2"))
    assert outcome.failure is not None
    assert outcome.failure.phase is Phase.LAUNCH
    assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE
    assert "pull quay.io/fake/other:2" in outcome.failure.summary
    assert not (Path(f"{docker}-state") / "runs.jsonl").exists()


def test_an_engine_that_is_not_there_is_told(tmp_path: Path, docker: Path) -> None:
    outcome = run(tmp_path / "attempts", job(), in_container(docker, client="/no/such/docker"))
    assert outcome.failure is not None
    assert "container.engine" in outcome.failure.summary


@pytest.mark.parametrize("victim", ["worker", "client", "supervisor"])
def test_no_container_outlives_what_started_it(tmp_path: Path, docker: Path, victim: str) -> None:
    root = tmp_path / "attempts"
    one = job(workload=endless())
    runner = start_runner(root, tmp_path / "templates", one, in_container(docker))
    try:
        files = AttemptFiles(root, one.uid)
        wait_for(lambda: number_in(files.folder / "pid") and containers(docker))
        victims = {"worker": runner.pid, "client": client_of(root, docker), "supervisor": supervisor_of(root)}
        os.kill(victims[victim], signal.SIGKILL)
        wait_for(lambda: not containers(docker), 60)
        runner.wait(60)
    finally:
        runner.kill()
        runner.wait()
    wait_for(lambda: not left(root), 60)
    assert not containers(docker)
    if victim != "worker":
        outcome = files.outcome()
        assert outcome is not None
        assert outcome.failure is not None
        assert outcome.failure.failure_class is FailureClass.INFRASTRUCTURE


def test_a_sweep_removes_what_worker_and_supervisor_left(tmp_path: Path, docker: Path) -> None:
    root = tmp_path / "attempts"
    one = job(workload=endless())
    runner = start_runner(root, tmp_path / "templates", one, in_container(docker))
    try:
        wait_for(lambda: number_in(root / one.uid / "pid") and containers(docker))
        supervisor = supervisor_of(root)
        for pid in (supervisor, runner.pid):
            os.kill(pid, signal.SIGSTOP)
        for pid in (supervisor, runner.pid):
            os.kill(pid, signal.SIGKILL)
        runner.wait()
        assert containers(docker)
        assert sweep_all(root) == {one.uid: set()}
        assert containers(docker) == []
        assert sweep_all(root) == {}
    finally:
        runner.kill()
        runner.wait()
        end_containers((root / one.uid).resolve())


def test_an_engine_that_does_not_answer_is_told_and_asked_again_later(tmp_path: Path, docker: Path) -> None:
    folder = tmp_path / "attempts" / "a1"
    folder.mkdir(parents=True)
    note = {"program": str(docker), "env": {"PATH": os.defpath, "FAKE_DOCKER": f"{docker}-state"}}
    (folder / "containers.json").write_text(json.dumps(note))
    deaf = Path(f"{docker}-state") / "deaf"
    deaf.touch()
    assert "Is the docker daemon running?" in (end_containers(folder, 0.5) or "")
    assert may_have_containers(folder)
    deaf.unlink()
    assert end_containers(folder) is None
    assert not may_have_containers(folder)


def test_a_folder_that_cannot_be_mounted_is_told(tmp_path: Path, docker: Path) -> None:
    outcome = run(tmp_path / "my attempts", job(), in_container(docker))
    assert outcome.failure is not None
    assert "cannot be mounted" in outcome.failure.summary


def supervisor_of(root: Path) -> int:
    return next(pid for pid in left(root) if b"workers.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes())


def client_of(root: Path, docker: Path) -> int:
    """The client of `docker run`, below the supervisor."""
    supervisor = supervisor_of(root)
    found = [pid for pid in left(root) if (s := process_stat(pid)) is not None and s.parent == supervisor]
    return next(pid for pid in found if b"fake_docker" in Path(f"/proc/{pid}/cmdline").read_bytes())
