"""What reaches exec: the allow-list and nothing else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autotune.domain.launch_plan import LaunchPlan, RolePlan
from autotune.domain.template import is_denied_env
from autotune.errors import InvalidCandidate, InvalidTemplate
from tests import builders
from tests.workers.launching import OneTemplate, job, number_in, template, wait_for
from workers.attempt import run_attempt
from workers.attempt_files import AttemptFiles
from workers.devices.held_memory import DEVICES_DIR
from workers.environment import base_environment, program_environment, role_devices
from workers.marked_processes import process_stat
from workers.redaction import MASK, is_secret, redact, redact_environment, secret_values
from workers.role_command import role_commands

BASE = {"PATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "AUTOTUNE_ATTEMPT", "AUTOTUNE_ATTEMPTS_ROOT"}
SENTINEL = "only-for-the-worker"


def env_of(files: AttemptFiles, plan: RolePlan, **changes: object) -> dict[str, str]:
    """The environment of the server of this plan."""
    one = job().model_copy(update={"plan": LaunchPlan(roles={"server": plan})})
    fake = template().model_copy(update=changes)
    return dict(role_commands(one, fake, files, "127.0.0.1", {"server": 20_000})["server"].env)


@pytest.fixture
def files(tmp_path: Path) -> AttemptFiles:
    return AttemptFiles(tmp_path, "a1")


def test_the_base_lies_in_the_attempts_folder(files: AttemptFiles) -> None:
    env = base_environment(files)
    assert env.keys() == BASE
    assert env["HOME"] == str(files.folder / "home")
    assert env["TMPDIR"] == str(files.folder / "tmp")
    assert program_environment(files).keys() == BASE | {"PYTHONPATH"}


def test_a_running_server_has_nothing_of_the_workers_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_TOKEN", "OMP_NUM_THREADS", "HTTPS_PROXY", "LD_LIBRARY_PATH", "PYTHONSTARTUP", "AWS_SECRET"):
        monkeypatch.setenv(name, SENTINEL)
    one = job("--deaf", env={"HCCL_BUFFSIZE": "200"})
    pid_file = tmp_path / one.uid / "pid"
    cancelled = threading.Event()
    runner = threading.Thread(
        target=run_attempt, args=(one, tmp_path, OneTemplate(template(env={"OWN": "1"})), cancelled)
    )
    runner.start()
    try:
        wait_for(lambda: number_in(pid_file))
        server = number_in(pid_file)
        stat = process_stat(server or 0)
        assert stat is not None
        of_server = Path(f"/proc/{server}/environ").read_bytes()
        of_supervisor = Path(f"/proc/{stat.parent}/environ").read_bytes()
    finally:
        cancelled.set()
        runner.join()

    names = {entry.split(b"=")[0].decode() for entry in of_server.split(b"\0") if entry}
    assert names == BASE | {"OWN", "HCCL_BUFFSIZE"}
    assert SENTINEL.encode() not in of_server + of_supervisor


NAMES = st.text(st.characters(codec="ascii"), max_size=12) | st.sampled_from(
    [
        "LD_PRELOAD",
        "ld_library_path",
        "PATH",
        "PYTHONPATH",
        "RAY_AUTH_TOKEN",
        "HOME",
        "TMPDIR",
        "http_proxy",
        "BASH_ENV",
    ]
)
TEXT = st.text(max_size=20) | st.sampled_from(["a\nb", "a\0b", "x" * 5000])


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, TEXT, max_size=4), st.lists(TEXT, max_size=3), st.lists(NAMES, max_size=2))
@example({"LD_PRELOAD": "/tmp/x.so"}, [], [])
def test_any_plan_is_refused_or_adds_only_harmless_variables(
    env: dict[str, str], argv: list[str], preload: list[str]
) -> None:
    files = AttemptFiles(Path("/nowhere/attempts"), "a1")
    plan = RolePlan(env=env, argv=tuple(argv), preload=tuple(preload))
    try:
        built = env_of(files, plan)
    except InvalidCandidate:
        return
    assert not preload
    added = built.keys() - BASE
    assert added == env.keys()
    assert not any(is_denied_env(name) for name in added)
    base = base_environment(files)
    assert {name: built[name] for name in BASE} == base
    assert not any(c in value for value in built.values() for c in "\0\n\r")
    assert os.environ.items() & {(n, v) for n, v in built.items() if n not in env}.difference(base.items()) == set()


def test_libraries_of_the_template_are_preloaded_by_path(tmp_path: Path, files: AttemptFiles) -> None:
    first, second = tmp_path / "a.so", tmp_path / "b.so"
    for path in (first, second):
        path.touch()
    libraries = {"a": str(first), "b": str(second)}
    assert env_of(files, RolePlan(preload=("a", "b")), libraries=libraries)["LD_PRELOAD"] == f"{first}:{second}"
    second.unlink()
    with pytest.raises(InvalidTemplate, match="library b"):
        env_of(files, RolePlan(preload=("b",)), libraries=libraries)


def test_an_ascend_engine_gets_its_devices_and_a_log_folder_of_its_own(files: AttemptFiles) -> None:
    four = builders.deployment(template="fake", devices=4, tensor_parallel=4)
    one = job().model_copy(update={"deployment": four})
    command = role_commands(one, template(engine="vllm-ascend"), files, "127.0.0.1", {"server": 1})["server"]
    assert command.env["ASCEND_RT_VISIBLE_DEVICES"] == "0,1,2,3"
    assert command.env["ASCEND_PROCESS_LOG_PATH"] == f"{files.folder}/plog"
    assert command.launched.env["ASCEND_PROCESS_LOG_PATH"] == "{trial_dir}/plog"
    with pytest.raises(InvalidCandidate):
        env_of(files, RolePlan(env={"ASCEND_RT_VISIBLE_DEVICES": "7"}))


def test_leased_devices_are_used_here_and_not_in_an_export(files: AttemptFiles) -> None:
    two = builders.deployment(template="fake", devices=2, tensor_parallel=2)
    one = job().model_copy(update={"deployment": two, "host_devices": (6, 7)})
    real = template(engine="vllm-ascend").model_copy(update={"simulated": False})
    command = role_commands(one, real, files, "127.0.0.1", {"server": 1})["server"]
    assert command.env["ASCEND_RT_VISIBLE_DEVICES"] == "6,7"
    assert command.launched.env["ASCEND_RT_VISIBLE_DEVICES"] == "0,1"
    assert DEVICES_DIR not in command.env
    simulated = real.model_copy(update={"simulated": True})
    command = role_commands(one, simulated, files, "127.0.0.1", {"server": 1})["server"]
    assert command.env[DEVICES_DIR] == str(files.root.parent / "run" / "devices")
    assert DEVICES_DIR not in command.launched.env
    unleased = one.model_copy(update={"host_devices": ()})
    assert DEVICES_DIR not in role_commands(unleased, simulated, files, "127.0.0.1", {"server": 1})["server"].env


def test_roles_divide_leased_devices_in_order() -> None:
    one = job().model_copy(
        update={"deployment": builders.deployment(template="fake", devices=4), "host_devices": (2, 3, 8, 9)}
    )
    role = template().roles["server"]
    router = role.model_copy(update={"takes_devices": False})
    several = template().model_copy(update={"roles": {"router": router, "prefill": role, "decode": role}})
    assert role_devices(one, several) == {"router": "", "prefill": "2,3", "decode": "8,9"}


def test_placeholders_of_a_plan_are_not_filled(files: AttemptFiles) -> None:
    assert env_of(files, RolePlan(env={"A": "{python}"}))["A"] == "{python}"


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "hf_abcdef", True),
        ("aws_secret_access_key", "x/y+z==", True),
        ("DB_PASSWORD", "hunter2-hunter2", True),
        ("MAX_DISPATCH_TOKENS_PER_RANK", "256", False),
        ("USE_KEY_CACHE", "true", False),
        ("HCCL_BUFFSIZE", "200", False),
        ("HF_TOKEN", "", False),
    ],
)
def test_which_variables_are_secret(name: str, value: str, secret: bool) -> None:
    assert is_secret(name, value) is secret


def test_secrets_of_command_lines_are_known_too() -> None:
    argv = [
        "--api-key",
        "topsecret",
        "--password=pass-word",
        "--max-num-batched-tokens",
        "8192",
        "--tokenizer",
        "/m/tok",
    ]
    assert secret_values([{"A_TOKEN": "token-value"}], [argv]) == ("token-value", "pass-word", "topsecret")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("abc", min_size=6, max_size=12), min_size=1, max_size=4), st.lists(st.text("abc", max_size=9)))
def test_no_secret_survives_redaction(values: list[str], around: list[str]) -> None:
    environment = {f"KEY_{n}": value for n, value in enumerate(values)}
    secrets = secret_values([environment])
    shown = redact("".join([*around, *values, *around]), secrets)
    assert not any(value in shown for value in values)
    assert set(redact_environment(environment, secrets).values()) == {MASK}
