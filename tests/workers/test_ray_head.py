"""Start and end of a Ray head; each test needs a head of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.errors import Unavailable
from tests.contracts.executor_contract import eventually
from workers.ray_head import RayHead


def session(leader: int) -> list[int]:
    """Living processes of the session that `leader` leads or led."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


@pytest.fixture
def head(tmp_path: Path) -> Iterator[RayHead]:
    head = RayHead(tmp_path / "run", slots=1)
    yield head
    head.stop()


def leader_of(head: RayHead) -> int:
    assert head._record is not None
    return head._record.pid


@pytest.mark.ray
def test_head_that_broke_down_is_ended_completely(head: RayHead, tmp_path: Path) -> None:
    """Its leader is killed: the rest goes on without it, until `stop`. Then a driver is told at once."""
    head.start()
    leader = leader_of(head)
    temp_dir = Path(head._record.temp_dir).parent if head._record else tmp_path
    assert temp_dir.stat().st_mode & 0o777 == 0o700
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, head.address, str(tmp_path), str(head.token_file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "1\n"
        os.kill(leader, signal.SIGKILL)
        assert eventually(lambda: not head.alive())
        RayHead(tmp_path / "run", slots=1).stop()  # as the next process does, that knows only the folder
        assert session(leader) == []
        assert not temp_dir.exists()
        words, _ = driver.communicate("\n")
        assert words == "Unavailable\n"
    finally:
        driver.kill()
        driver.wait()


DRIVER = """
import os, sys
from pathlib import Path
from autotune.errors import Unavailable
from workers.ray_executor import RayExecutor
address, root, token = sys.argv[1:]
executor = RayExecutor(address, Path(root), Path(root), Path(token))
print(executor.capacity(), flush=True)
sys.stdin.readline()
try:
    executor.capacity()
except Unavailable:
    print("Unavailable", flush=True)
os._exit(0)
"""


def test_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"port {port}"):
            RayHead(tmp_path, slots=1, port=port).start()


def test_head_that_does_not_come_up_in_time_is_ended(tmp_path: Path) -> None:
    head = RayHead(tmp_path, slots=1)
    with pytest.raises(Unavailable, match=r"in time; see .*ray-head\.log"):
        head.start(timeout_s=0.2)
    assert not head.alive()
    assert not (tmp_path / "ray-head.json").exists()


def test_start_is_broken_off_when_asked_to_stop(head: RayHead) -> None:
    stopping = threading.Event()
    stopping.set()
    head.start(stopping)
    leader = leader_of(head)
    head.stop()
    assert session(leader) == []
    assert not head.alive()


def test_stop_of_a_head_that_never_ran_does_nothing(head: RayHead) -> None:
    head.stop()
    with pytest.raises(Unavailable, match="not started"):
        head.address  # noqa: B018 - the property raises


def test_number_of_another_process_is_left_alone(head: RayHead, tmp_path: Path) -> None:
    """The machine was started anew: the recorded pid belongs to somebody else."""
    (tmp_path / "run").mkdir()
    record = f'{{"pid": {os.getpid()}, "started": 1, "address": "127.0.0.1:1", "temp_dir": "{tmp_path}/x/r", '
    (tmp_path / "run" / "ray-head.json").write_text(record + '"resources": {}}')
    head.stop()
    assert not (tmp_path / "run" / "ray-head.json").exists()


def test_token_is_for_its_owner_only_and_stays(tmp_path: Path) -> None:
    head = RayHead(tmp_path, slots=1)
    head._write_token()
    token = head.token_file.read_text()
    assert len(token) == 64
    head.token_file.chmod(0o644)
    head._write_token()
    assert head.token_file.read_text() == token
    assert head.token_file.stat().st_mode & 0o777 == 0o600
