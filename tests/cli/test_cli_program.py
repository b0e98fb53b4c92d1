"""The command as a program: help, exit codes, signals, a terminal; `up` and `demo` with a stand-in for the server."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from autotune.cli.main import app
from autotune.domain.export import to_env, to_json, to_sh
from autotune.domain.study import StudyState
from tests.cli.fake_api import FakeApi, overview, study
from tests.recipes import recipe

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "autotune.cli.main")

STUDY = """\
name: small-study
space: tiny
deployment: {template: simulated-910c, model: tiny-model}
workload:
  prompt_tokens: 64
  output_tokens: 16
  levels:
    - {concurrency: 1, requests: 16}
budget: {trials: 20, wall_time_s: 60}
parallel_trials: 3
"""

# Plays `python -m api.up`: found first, because the working directory leads the search path of `-m`.
STAND_IN = """
import argparse, json, os, signal, sys, threading
from pathlib import Path

mode = os.environ["STAND_IN"]
words = argparse.ArgumentParser()
for name in ("--data", "--host", "--port", "--executor", "--slots"):
    words.add_argument(name)
args = words.parse_args()
if mode == "echo":
    print(json.dumps([sys.executable, os.getpid(), sys.argv[1:]]))
    sys.exit(7)
if mode == "dies":
    sys.exit("no room on this host")

from tests.cli.fake_api import FakeApi, detail, line, overview, running, some_trials, study
from tests.recipes import recipe
from autotune.domain.study import StudyState

data = Path(args.data)
(data / "run").mkdir(parents=True)
(data / "autotune.db").touch()
state = StudyState.FAILED if mode == "fails" else StudyState.DONE
api = FakeApi()
api.says("POST /studies", overview(study()), status=201)
end = overview(study(state, finding="the baseline does not start"), 8.0, measured=4, failed=2)
api.says("GET /studies/3", *([] if mode == "endless" else [overview(study(), measured=1), end]))
if mode == "endless":
    api.says("GET /studies/3", overview(study(), measured=1))
api.says("GET /studies/3/recipe", recipe().model_dump(mode="json"))
api.lists["/studies/3/trials"] = [line(t) for t in some_trials()]
for trial in some_trials():
    api.says(f"GET /studies/3/trials/{trial.number}", detail(trial))
done = threading.Event()
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: done.set())
with running(api):
    (data / "run" / "up.json").write_text(json.dumps({"url": api.url, "pid": os.getpid(), "args": vars(args)}))
    while not done.wait(0.1):
        pass
(data / "ended").write_text("in order")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory with a study file and the stand-in."""
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "__init__.py").touch()
    (tmp_path / "api" / "up.py").write_text(STAND_IN)
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path


def environment(**changes: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **changes}


def run(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=60, check=False
    )


# --- use ------------------------------------------------------------------------------------


def test_help_lists_the_commands_and_imports_nothing_heavy() -> None:
    check = (
        "import sys\n"
        "from autotune.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'httpx', 'pydantic', 'yaml', 'rich', 'ray', 'optuna', 'sqlmodel', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("up", "study", "watch", "trials", "trial", "space", "export", "demo", "version"):
        assert f"\n  {name} " in done.stdout


def test_every_command_but_up_speaks_json() -> None:
    # `up` becomes the server process; it has nothing to tell before that. `classify` speaks nothing but JSON.
    without = [name for name, command in _commands(typer.main.get_command(app)) if "json" not in _options(command)]
    assert without == ["up", "classify"]


def _commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for key, inner in command.commands.items():
            yield from _commands(inner, f"{name} {key}".strip())
    else:
        yield name, command


def _options(command: Any) -> set[str]:
    return {str(parameter.name) for parameter in command.params}


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["study"],
        ["study", "nonsense"],
        ["watch"],
        ["watch", "three"],
        ["watch", "-1"],
        ["export", "3"],
        ["export", "3", "--format", "toml"],
        ["up", "--executor", "cloud"],
        ["up", "--slots", "0"],
        ["up", "--port", "70000"],
        ["demo", "study.yaml"],
        ["trial", "3"],
    ],
)
def test_wrong_use_ends_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app(args=words, prog_name="autotune")
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert "Usage: autotune" in out + err


def test_version() -> None:
    assert run("version").stdout.startswith("autotune 0.")
    assert set(json.loads(run("version", "--json").stdout)) == {"version"}


# --- watch ----------------------------------------------------------------------------------


def test_watch_ends_in_order_when_interrupted(api: FakeApi) -> None:
    api.says("GET /studies/3", overview(study(), measured=1))
    with subprocess.Popen(
        [*PROGRAM, "watch", "3", "--url", api.url], env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            assert "1 of at most 20 trials" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert "the study goes on; `autotune watch 3` follows it again" in process.stderr.read()
            assert process.wait(30) == 130
        finally:
            process.kill()


def test_watch_draws_a_bar_on_a_terminal(api: FakeApi) -> None:
    failed = overview(study(StudyState.FAILED, finding="nothing starts"), measured=2)
    api.says("GET /studies/3", overview(study(), 8.0, measured=1), failed)
    api.lists["/studies/3/trials"] = []
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, "watch", "3", "--url", api.url],
        env=environment(TERM="xterm", COLUMNS="150"),
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:  # the other end of a terminal was closed
            pass
        os.close(ours)
        assert process.stdout is not None
        assert "nothing starts" in process.stdout.read()
        assert process.wait(30) == 1
    text = seen.decode()
    assert "1/20" in text
    assert "search, best 8 ms (+20.0 %, trial 7)" in text


# --- up -------------------------------------------------------------------------------------


def test_up_becomes_the_server(place: Path) -> None:
    words = [*PROGRAM, "up", "--data", "some data", "--port", "0", "--executor", "local", "--slots", "2"]
    with subprocess.Popen(
        words, cwd=place, env=environment(STAND_IN="echo"), stdout=subprocess.PIPE, text=True
    ) as process:
        output, _ = process.communicate(timeout=60)
    executable, pid, argv = json.loads(output)
    assert executable == sys.executable
    assert pid == process.pid
    asked = ["--data", "some data", "--host", "127.0.0.1", "--port", "0", "--executor", "local", "--slots", "2"]
    assert argv == asked
    assert process.returncode == 7


# --- demo -----------------------------------------------------------------------------------


def demo(place: Path, mode: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run("demo", "study.yaml", "--out", "out/demo", *words, cwd=place, STAND_IN=mode)


def test_demo_runs_a_study_and_writes_its_results(place: Path) -> None:
    out = place / "out" / "demo"
    done = demo(place, "ok", "--executor", "local")
    assert done.returncode == 0, done.stderr
    assert "CONFIRMED: 20.0 % better" in done.stdout
    assert "study 3 small-study: 6 of at most 20 trials" in done.stderr
    assert (out / "launch.sh").read_text() == to_sh(recipe())
    assert os.access(out / "launch.sh", os.X_OK)
    assert (out / "recipe.json").read_text() == to_json(recipe())
    assert (out / "env").read_text() == to_env(recipe())
    trials = json.loads((out / "trials.json").read_text())
    assert [t["number"] for t in trials] == [0, 1, 2, 3, 4, 5]
    assert trials[1]["tpot_ms"] == {"c1": 8.0, "c4": 8.0, "c8": 8.0}
    assert trials[1]["candidate"] == {"max_num_seqs": 16, "expansion_mode": "AIV", "buffer_mb": 128}
    assert trials[1]["changes"]["buffer_mb"] == {"from": None, "to": 128}
    assert (trials[1]["feasible"], trials[1]["failure"]) == (True, None)
    assert trials[2]["feasible"] is False
    assert trials[3]["failure"]["class"] == "out_of_memory"
    assert trials[3]["failure"]["exit_code"] == 3
    assert trials[3]["failure"]["log_tail"].endswith("the end")
    assert {t["phase"] for t in trials} == {"gate", "search"}
    assert (out / "data" / "ended").read_text() == "in order"
    args = json.loads((out / "data" / "run" / "up.json").read_text())["args"]
    assert (args["port"], args["executor"], args["slots"]) == ("0", "local", "3")


def test_demo_replaces_what_it_knows_and_nothing_else(place: Path) -> None:
    out = place / "out" / "demo"
    (out / "data" / "run").mkdir(parents=True)
    (out / "data" / "old").touch()
    (out / "launch.sh").write_text("old")
    (out / "notes.txt").write_text("mine")
    done = demo(place, "fails", "--json")
    assert done.returncode == 1, done.stderr
    content = json.loads(done.stdout)
    assert content["study"]["finding"] == "the baseline does not start"
    assert content["recipe"] is None
    assert not (out / "launch.sh").exists()
    assert not (out / "data" / "old").exists()
    assert (out / "trials.json").exists()
    assert (out / "notes.txt").read_text() == "mine"


def test_demo_tells_why_the_server_does_not_start(place: Path) -> None:
    done = demo(place, "dies")
    assert done.returncode == 1
    assert "the server ended with exit code 1" in done.stderr
    assert "no room on this host" in done.stderr


def test_demo_refuses_a_wrong_file_before_it_starts_anything(place: Path) -> None:
    (place / "study.yaml").write_text(STUDY.replace("trials: 20", "trials: 1"))
    done = demo(place, "ok")
    assert done.returncode == 2
    assert "study.yaml:9: budget.trials: 1 is less than" in done.stderr
    assert not (place / "out").exists()


def test_demo_leaves_a_folder_alone_that_is_not_its_own(place: Path) -> None:
    data = place / "out" / "demo" / "data"
    data.mkdir(parents=True)
    (data / "precious").touch()
    done = demo(place, "ok")
    assert done.returncode == 2
    assert "holds something else" in done.stderr
    assert (data / "precious").exists()


def test_demo_leaves_a_folder_alone_that_a_server_uses(place: Path) -> None:
    lock = place / "out" / "demo" / "data" / "run" / "up.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        done = demo(place, "ok")
    assert done.returncode == 1
    assert "a server still uses" in done.stderr
    assert lock.exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_demo_ends_its_server_when_it_is_ended(place: Path, number: signal.Signals, code: int) -> None:
    with subprocess.Popen(
        [*PROGRAM, "demo", "study.yaml", "--out", "out"],
        cwd=place,
        env=environment(STAND_IN="endless"),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            while "of at most" not in (news := process.stderr.readline()):
                assert news
            process.send_signal(number)
            process.stderr.read()
            assert process.wait(60) == code
        finally:
            process.kill()
    data = place / "out" / "data"
    pid = json.loads((data / "run" / "up.json").read_text())["pid"]
    assert (data / "ended").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
