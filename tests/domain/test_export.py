"""Exports of a recipe: a script that really starts what was measured, an env file, JSON with the evidence."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.export import claim_in_words, to_env, to_json, to_sh
from autotune.domain.job import LaunchedRole
from tests.recipes import not_proven, recipe

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
DUMP = (
    "import json, os, sys\n"
    "path = sys.argv[1]\n"
    "json.dump({'argv': sys.argv[2:], 'env': dict(os.environ), 'cwd': os.getcwd()}, open(path + '.new', 'w'))\n"
    "os.replace(path + '.new', path)\n"
)


# --- json -----------------------------------------------------------------------------------


def test_json_tells_what_is_recommended_and_why() -> None:
    content = json.loads(to_json(recipe()))
    assert content["confirmed"] is True
    assert content["finding"] == "20.0 % better than the baseline"
    assert content["best"]["trial"] == 21
    assert content["best"]["trials"] == [21, 24, 27]
    assert content["best"]["env"] == {"HCCL_BUFFSIZE": "200"}
    assert content["best"]["argv"] == ["/opt/serve", "--port", "{port}"]
    assert content["best"]["tpot_ms"] == {"c1": 6.4, "c4": 7.2, "c8": 8.0}
    assert content["best"]["intervals"]["tpot_ms"]["c8"] == {"mean": 8.0, "low": 7.0, "high": 9.0, "n": 3}
    assert content["baseline"]["tpot_ms"] == {"c1": 8.0, "c4": 9.0, "c8": 10.0}
    assert content["baseline"]["argv"][-1] == "--base"
    assert content["gain_pct"]["c1"] == {"mean": 21.0, "low": 20.0, "high": 22.0, "n": 3}
    assert content["changes"]["expansion_mode"] == {"from": None, "to": "AIV"}
    assert content["sla"] == ["ttft_p99_ms <= 400"]
    assert content["versions"] == {"autotune": "0.1.0"}
    assert (content["study_id"], content["study_name"], content["seed"]) == (3, "report-a", 7)
    assert content["workload"]["levels"][0] == {"concurrency": 1, "requests": 16}


def test_json_without_proof_recommends_the_baseline_and_shows_what_came_near() -> None:
    content = json.loads(to_json(not_proven()))
    assert content["confirmed"] is False
    assert content["best"]["trials"] == content["baseline"]["trials"]
    assert content["gain_pct"] == {}
    assert content["objective_gain_pct"] is None
    assert content["contenders"][0]["reason"] == "the interval holds 0"
    assert content["contenders"][0]["gain_pct"]["c8"]["mean"] == 19.5


def test_json_of_a_baseline_that_never_ran_has_no_trial() -> None:
    silent = recipe().baseline.model_copy(update={"objective": None, "trials": (), "tpot_ms": {}})
    content = json.loads(to_json(recipe(baseline=silent)))
    assert content["baseline"]["trial"] is None
    assert content["baseline"]["objective"] is None
    assert content["baseline"]["tpot_ms"] == {}


def test_the_same_recipe_gives_the_same_files() -> None:
    for write in (to_json, to_env, to_sh):
        assert write(recipe()) == write(recipe())


# --- env ------------------------------------------------------------------------------------


def test_env_can_be_sourced_and_keeps_single_launch_values_out(tmp_path: Path) -> None:
    env = {"HCCL_BUFFSIZE": "200", "TEXT": "two 'words' $HOME", "LOGS": "{trial_dir}/plog", "HF_TOKEN": "***"}
    text = to_env(recipe(roles={"server": LaunchedRole(argv=("serve",), env=env)}))
    assert "# LOGS={trial_dir}/plog" in text
    assert "# HF_TOKEN=***" in text
    file = tmp_path / "env"
    file.write_text(text)
    script = 'set -a; . "$1"; printf "%s|%s|%s" "$HCCL_BUFFSIZE" "$TEXT" "${LOGS-none}"'
    done = subprocess.run(["bash", "-c", script, "-", str(file)], capture_output=True, text=True, check=True)
    assert done.stdout == "200|two 'words' $HOME|none"


def test_env_of_the_baseline() -> None:
    assert "HCCL_BUFFSIZE" in to_env(recipe())
    assert "\nHCCL_BUFFSIZE" not in to_env(recipe(), baseline=True)


# --- sh -------------------------------------------------------------------------------------


def dumping(folder: Path, name: str = "dump.json") -> tuple[str, ...]:
    """A command that writes down how it was called."""
    program = folder / "fake server"
    program.write_text(DUMP)
    return (sys.executable, "-I", str(program), str(folder / name))


def run_script(text: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    script = folder / "launch.sh"
    script.write_text(text, encoding="utf-8")
    outside = {"PATH": os.environ["PATH"], "RUN_DIR": str(folder / "run"), "LEAK": "from outside", **env}
    return subprocess.run(["bash", str(script)], env=outside, capture_output=True, text=True, check=False)


def called(folder: Path, name: str = "dump.json") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / name).read_text())
    return content


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True).filter(
    lambda n: n not in {"HOME", "PATH", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE"} and not n.startswith(("LD_", "PYTHON"))
)


@settings(max_examples=40, deadline=None)
@given(argv=st.lists(WORDS, max_size=5), env=st.dictionaries(NAMES, WORDS, max_size=4), finding=WORDS, name=WORDS)
def test_any_text_reaches_the_server_as_it_is(argv: list[str], env: dict[str, str], finding: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        role = LaunchedRole(argv=(*dumping(folder), *argv), env=env)
        script = to_sh(recipe(roles={"server": role}, finding=finding, study_name=name))
        done = run_script(script, folder, **dict.fromkeys(env, "secret"))
        assert done.returncode == 0, done.stderr
        seen = called(folder)
        run = str((folder / "run").resolve())

        def filled(text: str) -> str:
            for place, value in {"{host}": "127.0.0.1", "{port}": "8000", "{trial_dir}": run}.items():
                text = text.replace(place, value)
            return text

        assert seen["argv"] == [filled(word) for word in argv]
        expected = {key: "secret" if value == "***" else filled(value) for key, value in env.items()}
        assert {key: seen["env"].get(key) for key in env} == expected
        assert "LEAK" not in seen["env"]


def test_open_places_are_filled_from_variables_that_can_be_set(tmp_path: Path) -> None:
    words = ("--bind={host}:{port}", "{trial_dir}/it's", "{model}", '{"port":1}')
    role = LaunchedRole(argv=(*dumping(tmp_path), *words), env={"LOGS": "{trial_dir}/plog"})
    script = to_sh(recipe(roles={"server": role}))
    assert run_script(script, tmp_path, HOST="::1", PORT="8123").returncode == 0
    seen = called(tmp_path)
    run = str((tmp_path / "run").resolve())
    assert seen["argv"] == ["--bind=::1:8123", f"{run}/it's", "{model}", '{"port":1}']
    assert seen["env"]["LOGS"] == f"{run}/plog"


def test_the_environment_is_made_from_scratch(tmp_path: Path) -> None:
    role = LaunchedRole(argv=dumping(tmp_path), env={"A": "1", "LANG": "C", "AUTOTUNE_ATTEMPT": "s1-t1-a1"})
    assert run_script(to_sh(recipe(roles={"server": role})), tmp_path).returncode == 0
    seen = called(tmp_path)
    run = str((tmp_path / "run").resolve())
    assert seen["env"] == {
        "A": "1",
        "HOME": f"{run}/home",
        "LANG": "C",
        "LC_ALL": "C.UTF-8",
        "PATH": f"{Path(sys.executable).parent}:/bin:/usr/bin",
        "TMPDIR": f"{run}/tmp",
    }
    assert seen["cwd"] == run
    assert (tmp_path / "run" / "home").is_dir()
    assert (tmp_path / "run" / "tmp").is_dir()


def test_constants_of_modules_come_with_the_hook_that_sets_them(tmp_path: Path) -> None:
    hook = Path(__file__).parents[2] / "workers" / "constants" / "site"
    (tmp_path / "engine.py").write_text("LIMIT = 96\n")
    constants = json.dumps({"engine:LIMIT": 1})
    role = LaunchedRole(
        argv=(sys.executable, "-c", "import engine; print(engine.LIMIT)"),
        env={"PYTHONPATH": f"{hook}:{tmp_path}", "AUTOTUNE_CONSTANTS": constants, "AUTOTUNE_ATTEMPT": "s1-t1-a1"},
    )
    script = to_sh(recipe(roles={"server": role}))
    done = run_script(script, tmp_path)
    assert (done.stdout, done.stderr) == ("1\n", "autotune: set engine:LIMIT from 96 to 1\n")
    assert f"through a hook that comes with autotune: {hook}\n" in script
    assert "a hook that comes with autotune" not in to_sh(recipe(roles={"server": role}), baseline=True)
    settings = to_env(recipe(roles={"server": role}))
    assert f"\nAUTOTUNE_CONSTANTS='{constants}'\nPYTHONPATH={hook}:{tmp_path}\n" in settings
    content = json.loads(to_json(recipe(roles={"server": role})))
    assert content["best"]["env"].keys() == {"AUTOTUNE_CONSTANTS", "PYTHONPATH"}


def test_a_program_with_an_equals_sign_in_its_path_is_started(tmp_path: Path) -> None:
    folder = tmp_path / "a=b"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    _, *rest = dumping(tmp_path)
    role = LaunchedRole(argv=(str(folder / "python"), *rest, "x"), env={"A": "1"})
    done = run_script(to_sh(recipe(roles={"server": role})), tmp_path)
    assert done.returncode == 0, done.stderr
    assert called(tmp_path)["argv"] == ["x"]


def test_a_secret_that_was_not_recorded_is_asked_for(tmp_path: Path) -> None:
    script = to_sh(recipe(roles={"server": LaunchedRole(argv=dumping(tmp_path), env={"HF_TOKEN": "***"})}))
    missing = run_script(script, tmp_path)
    assert missing.returncode != 0
    assert "HF_TOKEN: is a secret that was not recorded; set it" in missing.stderr
    assert run_script(script, tmp_path, HF_TOKEN="hf it's").returncode == 0
    assert called(tmp_path)["env"]["HF_TOKEN"] == "hf it's"


def test_the_script_becomes_the_server(tmp_path: Path) -> None:
    role = LaunchedRole(argv=("/bin/sh", "-c", 'echo "$$"; exit 7'), env={})
    script = tmp_path / "launch.sh"
    script.write_text(to_sh(recipe(roles={"server": role})))
    with subprocess.Popen(
        ["bash", str(script)], stdout=subprocess.PIPE, env={"RUN_DIR": str(tmp_path / "run"), "PATH": "/bin:/usr/bin"}
    ) as process:
        output, _ = process.communicate(timeout=30)
    assert int(output) == process.pid
    assert process.returncode == 7


def test_the_header_tells_study_proof_gain_and_how_to_write_it_again() -> None:
    text = to_sh(recipe())
    head = text[: text.index("set -euo pipefail")]
    assert "Study 3 (report-a), vllm-ascend on ascend-910c: the best configuration." in head
    assert "SIMULATED" in head
    assert "CONFIRMED: 20.0 % better than the baseline" in head
    assert "gain in tpot_ms at c8: 19.5 % [18.5, 20.5], 3 launches, 95% confidence" in head
    assert 'expansion_mode: unset -> "AIV"' in head
    assert "autotune 0.1.0" in head
    assert "seed 7" in head
    assert "autotune export 3 --format sh" in head
    head = to_sh(not_proven())
    assert "NOT PROVEN: no candidate is proven to be better" in head
    assert "the baseline, which stays" in head
    assert "gain at" not in head
    assert "autotune export 3 --format sh --baseline" in to_sh(recipe(), baseline=True)


@pytest.mark.parametrize("finding", ["confirmed: it is better", "it is better", "Confirmed it is better"])
def test_the_claim_is_made_once(finding: str) -> None:
    assert claim_in_words(recipe(finding=finding)) == "CONFIRMED: it is better"
    assert claim_in_words(not_proven(finding="not proven; too noisy")) == "NOT PROVEN: too noisy"
    assert claim_in_words(not_proven(finding="not proven")) == "NOT PROVEN"


def two_roles(folder: Path, tail: tuple[str, ...]) -> dict[str, LaunchedRole]:
    first = LaunchedRole(argv=(*dumping(folder, "first.json"), "{port}"), env={"ROLE": "prefill"})
    return {"prefill": first, "it's\ndecode": LaunchedRole(argv=tail, env={"ROLE": "decode"})}


def test_several_roles_run_beside_each_other_and_end_together(tmp_path: Path) -> None:
    second = (*dumping(tmp_path, "second.json"), "{port}")
    sleeper = ("/bin/sh", "-c", 'echo "$$" > "$0"; exec sleep 100', str(tmp_path / "pid"))
    roles = {**two_roles(tmp_path, second), "router": LaunchedRole(argv=sleeper, env={})}
    assert run_script(to_sh(recipe(roles=roles)), tmp_path, PORT="9000").returncode == 0
    if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)
    started = [name for name in ("first.json", "second.json") if (tmp_path / name).exists()]
    assert started  # the first that ends takes the others along
    ports = {"first.json": "9000", "second.json": "9001"}
    assert [called(tmp_path, name)["argv"] for name in started] == [[ports[name]] for name in started]


def test_several_roles_end_when_the_script_is_told_to(tmp_path: Path) -> None:
    sleeper = ("/bin/sh", "-c", 'echo "$$" > "$0"; exec sleep 100')
    roles = {n: LaunchedRole(argv=(*sleeper, str(tmp_path / n)), env={}) for n in ("prefill", "decode")}
    script = tmp_path / "launch.sh"
    script.write_text(to_sh(recipe(roles=roles)))
    env = {"RUN_DIR": str(tmp_path / "run"), "PATH": "/bin:/usr/bin"}
    with subprocess.Popen(["bash", str(script)], env=env) as process:
        deadline = time.monotonic() + 30
        while not all((tmp_path / n).exists() and (tmp_path / n).read_text().strip() for n in roles):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    for name in roles:
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)


@pytest.mark.parametrize("kind", ["one", "several", "secret", "not proven", "odd"])
def test_shellcheck_has_nothing_to_say(kind: str, tmp_path: Path) -> None:
    odd = LaunchedRole(argv=("/opt/a=b", "$(id)", "", "it's", "a\nb", "--x={host}"), env={"A": "`id`", "B": ""})
    made = {
        "one": recipe(),
        "several": recipe(roles=two_roles(tmp_path, ("/bin/true",))),
        "secret": recipe(roles={"server": LaunchedRole(argv=("/opt/serve",), env={"HF_TOKEN": "***"})}),
        "not proven": not_proven(),
        "odd": recipe(roles={"server": odd}),
    }[kind]
    command = str(SHELLCHECK) if SHELLCHECK.exists() else shutil.which("shellcheck")
    assert command is not None
    done = subprocess.run([command, "-"], input=to_sh(made), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
