"""The control group of an attempt: against a folder that looks like the kernel's, and against the kernel."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.launching import is_alive, left, wait_for
from workers.attempt_cgroup import AttemptCgroup, find_cgroup, make_cgroup, names_in, own_folder
from workers.attempt_end import end_attempt
from workers.marked_processes import cgroup_of, end_marked, marked

# A process in a group of its own, with a child that has left its session; the child's number comes first.
FORKED = """
import os, subprocess, sys, time
from pathlib import Path
from workers.attempt_cgroup import AttemptCgroup
AttemptCgroup(Path(sys.argv[1])).join()
print(subprocess.Popen(["/bin/sleep", "600"], start_new_session=True, env={}, cwd="/").pid, flush=True)
time.sleep(600)
"""


def fake_proc(folder: Path, groups: str, mounts: str) -> Path:
    own = folder / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text(groups)
    (own / "mountinfo").write_text(mounts)
    return folder / "proc"


def mount(point: Path, root: str = "/", kind: str = "cgroup2") -> str:
    return f"31 23 0:27 {root} {point} rw,nosuid shared:9 - {kind} {kind} rw\n"


def test_a_group_is_made_below_our_own(tmp_path: Path) -> None:
    ours = tmp_path / "fs" / "jobs" / "one"
    (ours / "autotune-ab12").mkdir(parents=True)
    (ours / "autotune-ab12" / "cgroup.kill").touch()  # the kernel's own doing
    proc = fake_proc(tmp_path, "4:memory:/elsewhere\n0::/jobs/one\n", mount(tmp_path / "fs"))
    group = make_cgroup("ab12", proc)
    assert group is not None
    assert group == find_cgroup("ab12", proc) == AttemptCgroup(ours / "autotune-ab12")
    assert find_cgroup("ab13", proc) is None
    group.join()
    group.kill()
    assert (group.folder / "cgroup.procs").read_text().isdigit()
    assert (group.folder / "cgroup.kill").read_text() == "1"
    group.remove()
    assert group.folder.exists(), "what is not empty stays"


@pytest.mark.parametrize(
    ("groups", "kind"),
    [
        ("0::/jobs/one\n", "cgroup2"),  # a kernel without cgroup.kill
        ("0::/absent\n", "cgroup2"),
        ("0::/../other\n", "cgroup2"),
        ("4:memory:/jobs/one\n", "cgroup2"),
        ("0::/jobs/one\n", "cgroup"),
    ],
)
def test_a_host_that_grants_none_is_not_complained_about(tmp_path: Path, groups: str, kind: str) -> None:
    ours = tmp_path / "fs" / "jobs" / "one"
    ours.mkdir(parents=True)
    proc = fake_proc(tmp_path, groups, mount(tmp_path / "fs", kind=kind))
    assert make_cgroup("ab12", proc) is None
    assert list(ours.iterdir()) == []
    assert make_cgroup("ab12", tmp_path / "no-proc") is None


def test_a_part_of_the_tree_may_be_mounted(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, "0::/box/inner\n", mount(tmp_path, root="/box"))
    assert own_folder(proc) == tmp_path / "inner"


def test_a_group_that_is_gone_is_no_error(tmp_path: Path) -> None:
    group = AttemptCgroup(tmp_path / "autotune-1")
    group.join()
    group.kill()
    group.remove()


@given(st.text())
def test_any_text_has_names_or_none(text: str) -> None:
    assert all("/" not in name for name in names_in(text))
    assert names_in(f"4:memory:/autotune-1\n0::/a/autotune-2/b/autotune-3\n{text}")[:2] == ["2", "3"]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[AttemptCgroup]:
    found = cgroup_of(str(tmp_path), "a1", make=True)
    if found is None:
        pytest.skip("this host grants no control groups")
    yield found
    found.kill()
    wait_for(lambda: (found.remove(), not found.folder.exists())[1])


def test_one_write_ends_all(tmp_path: Path, group: AttemptCgroup) -> None:
    (tmp_path / "a1").mkdir()
    command = [sys.executable, "-c", FORKED, str(group.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd="/", env={}) as server:
        try:
            assert server.stdout is not None
            child = int(server.stdout.readline())
            assert marked(str(tmp_path)) == {server.pid: "a1", child: "a1"}
            assert end_marked(str(tmp_path), "a1", set(), 20) == set()
            assert server.wait() == -signal.SIGKILL
            wait_for(lambda: not is_alive(child))
            assert left(tmp_path) == {}
            assert not group.folder.exists()
            assert cgroup_of(str(tmp_path), "a1") is None
        finally:
            server.kill()


def test_an_empty_group_does_not_outlive_its_attempt(tmp_path: Path, group: AttemptCgroup) -> None:
    assert end_attempt(tmp_path, "a1") == []
    assert not group.folder.exists()
