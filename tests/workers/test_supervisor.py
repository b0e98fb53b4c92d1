"""The supervisor and the log that it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.launching import is_alive, job, left, number_in, template, wait_for
from workers.attempt_files import AttemptFiles
from workers.capped_log import MASK, CappedLog
from workers.free_port import free_port
from workers.marked_processes import descendants, process_stat
from workers.role_command import role_commands
from workers.server_tree import ServerTree, SupervisorLost


@contextmanager
def tree(root: Path, *argv: str, secrets: tuple[str, ...] = (), stop_s: float = 2.0) -> Iterator[ServerTree]:
    """A fake server below its supervisor."""
    files = AttemptFiles(root, "a1")
    files.create()
    commands = role_commands(job(*argv), template(), files, "127.0.0.1", {"server": free_port()})
    servers = ServerTree(files, commands, secrets, stop_s)
    try:
        servers.wait_started(1, lambda: None)
        yield servers
    finally:
        servers.stop()


def test_the_server_has_a_session_of_its_own_and_no_core_files(tmp_path: Path) -> None:
    with tree(tmp_path, "--deaf") as servers:
        server = servers.pids["server"]
        wait_for(lambda: number_in(tmp_path / "a1" / "pid") == server)
        assert os.getsid(server) == server
        assert os.getsid(server) != os.getsid(0)
        stat = process_stat(server)
        assert stat is not None
        assert os.getsid(stat.parent) not in {server, os.getsid(0)}
        assert Path(f"/proc/{server}/cwd").readlink() == tmp_path / "a1"
        core_files = next(x for x in Path(f"/proc/{server}/limits").read_text().splitlines() if "core file" in x)
        assert core_files.split()[4:6] == ["0", "0"]
        ignored = next(x for x in Path(f"/proc/{server}/status").read_text().splitlines() if x.startswith("SigIgn"))
        assert not int(ignored.split()[1], 16) & 1 << (signal.SIGTERM - 1)
        assert server not in descendants(os.getpid())


@pytest.mark.parametrize("orphan", ["setsid", "titled", "scrubbed"])
def test_stop_reaches_whatever_the_server_left_behind(tmp_path: Path, orphan: str) -> None:
    with tree(tmp_path, "--deaf", "--orphan", orphan, "--ignore-term", stop_s=0.5) as servers:
        wait_for(lambda: number_in(tmp_path / "a1" / "orphan"))
        grandchild = number_in(tmp_path / "a1" / "orphan")
        assert grandchild is not None
        assert servers.stop() == set()
        assert not is_alive(grandchild)
        assert not is_alive(servers.pids["server"])
        assert left(tmp_path) == {}


def test_a_server_that_obeys_is_not_waited_for(tmp_path: Path) -> None:
    with tree(tmp_path, stop_s=60) as servers:
        wait_for(lambda: number_in(tmp_path / "a1" / "pid"))
        begun = time.monotonic()
        assert servers.stop() == set()
        assert time.monotonic() - begun < 30
        assert servers.exits == {"server": -signal.SIGTERM}


def test_stop_may_be_called_twice(tmp_path: Path) -> None:
    with tree(tmp_path, "--deaf") as servers:
        assert servers.stop() == set()
        assert servers.stop() == set()


def test_an_exit_is_reported_with_its_code_after_the_last_word_was_logged(tmp_path: Path) -> None:
    with tree(tmp_path, "--say", "x" * 100_000 + "last word", "--exit", "5") as servers:
        wait_for(servers.poll)
        assert servers.poll() == {"server": 5}
        assert AttemptFiles(tmp_path, "a1").log_text("server").endswith("last word\n")


def test_a_killed_server_gets_its_last_words_from_the_supervisor(tmp_path: Path) -> None:
    with tree(tmp_path, "--deaf") as servers:
        os.kill(servers.pids["server"], signal.SIGSEGV)
        wait_for(servers.poll)
        assert servers.poll() == {"server": -signal.SIGSEGV}
        assert "[autotune] server was ended by SIGSEGV" in AttemptFiles(tmp_path, "a1").log_text("server")


def test_a_supervisor_that_is_gone_is_noticed(tmp_path: Path) -> None:
    with tree(tmp_path, "--deaf") as servers:
        stat = process_stat(servers.pids["server"])
        assert stat is not None
        os.kill(stat.parent, signal.SIGKILL)
        with pytest.raises(SupervisorLost):
            wait_for(servers.poll)
        wait_for(lambda: not is_alive(servers.pids["server"]))


def test_a_flood_of_output_is_kept_up_with(tmp_path: Path) -> None:
    with tree(tmp_path, "--flood-mb", "20", "--exit", "0") as servers:
        wait_for(servers.poll)
        assert AttemptFiles(tmp_path, "a1").log_size("server") > 20_000_000


def test_secrets_never_reach_the_log(tmp_path: Path) -> None:
    with tree(tmp_path, "--say", "the key is s3cret-s3cret!", "--exit", "0", secrets=("s3cret-s3cret",)) as servers:
        wait_for(servers.poll)
    assert AttemptFiles(tmp_path, "a1").log_text("server") == "the key is ***!\n"


def test_the_supervisor_needs_nothing_but_the_standard_library() -> None:
    code = "import workers.supervisor, sys; print('pydantic' in sys.modules, 'httpx' in sys.modules)"
    package_root = Path(__file__).parents[2]
    shown = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(package_root)}, capture_output=True, check=True
    )
    assert shown.stdout == b"False False\n"


def test_without_a_specification_the_supervisor_starts_nothing() -> None:
    package_root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "workers.supervisor"],
        env={"PYTHONPATH": str(package_root)},
        input=b"",
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1
    assert b"no specification" in ended.stderr


HEAD, CAP = 100, 1000


@settings(max_examples=80, deadline=None)
@given(pieces=st.lists(st.integers(0, 700), max_size=25))
def test_a_log_keeps_beginning_and_end_within_its_cap(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[int]
) -> None:
    path = tmp_path_factory.mktemp("log") / "x.log"
    written = b"".join(b"%09d\n" % n for n in range(sum(pieces) // 10 + 1))[: sum(pieces)]
    log = CappedLog(path, head_bytes=HEAD, cap_bytes=CAP)
    at = 0
    for size in pieces:
        log.write(written[at : at + size])
        at += size
        assert path.stat().st_size <= CAP
    log.close()
    kept = path.read_bytes()
    assert kept[:HEAD] == written[:HEAD]
    if len(written) <= CAP:
        assert kept == written
    else:
        assert b"bytes of this log were dropped here" in kept
        assert kept.endswith(written[-CAP // 4 :])


SECRETS = (b"secret-one", b"secret-one-longer", b"abcabcabc")


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.sampled_from([*SECRETS, b"x", b"\n", b"secret", b"abc", b"-one", b"y" * 70_000]), max_size=12),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
)
def test_a_secret_is_masked_however_the_output_is_cut(
    tmp_path_factory: pytest.TempPathFactory, words: list[bytes], cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("log") / "x.log"
    written = b"".join(words)
    log = CappedLog(path, SECRETS)
    at, turn = 0, 0
    while at < len(written):
        size = cuts[turn % len(cuts)] if turn < 200 else len(written)
        log.write(written[at : at + size])
        at, turn = at + size, turn + 1
    log.close()
    kept = path.read_bytes()
    assert not any(secret in kept for secret in SECRETS)
    if not any(secret in written for secret in SECRETS):
        assert kept == written
    else:
        assert MASK in kept


def test_a_head_that_leaves_no_room_for_the_rest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="quarter"):
        CappedLog(tmp_path / "x.log", head_bytes=300, cap_bytes=1000)
