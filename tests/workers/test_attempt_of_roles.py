"""Deployments of several roles: their addresses, their devices, their readiness, and the script that starts them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from autotune.domain.export import to_sh
from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import TrialJob
from autotune.domain.launch_plan import LaunchPlan, RolePlan
from autotune.domain.template import Deadlines, LaunchTemplate, RoleTemplate
from tests import builders
from tests.recipes import recipe
from tests.workers.launching import ARGV, left, run, template
from tests.workers.launching import job as one_job
from workers.attempt_files import AttemptFiles
from workers.role_command import RoleCommand, role_commands

SHELLCHECK = Path(sys.executable).with_name("shellcheck")
TELL = "import json, os, sys; json.dump([sys.argv[2:], dict(os.environ)], open(sys.argv[1], 'w'))"


def roles(**changes: RoleTemplate) -> LaunchTemplate:
    """Router, prefill and decode, each a fake server."""
    one = RoleTemplate(argv=ARGV)
    return template().model_copy(update={"roles": {"router": one, "prefill": one, "decode": one} | changes})


def job(**plans: RolePlan) -> TrialJob:
    return one_job().model_copy(update={"plan": LaunchPlan(roles=dict(plans))})


def commands(folder: Path, launch: LaunchTemplate, devices: int = 16) -> dict[str, RoleCommand]:
    asked = job().model_copy(update={"deployment": builders.deployment(template="fake", model="m", devices=devices)})
    ports = {name: 9000 + i for i, name in enumerate(launch.roles)}
    return role_commands(asked, launch, AttemptFiles(folder, "s1-t0-a1"), "127.0.0.1", ports)


def router(*words: str) -> RoleTemplate:
    return RoleTemplate(argv=("/bin/route", "--port", "{port}", *words), takes_devices=False)


def three(engine: str = "sglang-ascend") -> LaunchTemplate:
    server = RoleTemplate(argv=("/bin/serve", "{port}", "{devices}"))
    route = router("--prefill", "http://{host}:{prefill_port}", "--decode", "http://{host}:{decode_port}")
    return LaunchTemplate(
        name="fake", engine=engine, models={"m": "/m"}, roles={"router": route, "prefill": server, "decode": server}
    )


# --- addresses ------------------------------------------------------------------------------


def test_a_role_is_told_where_the_others_are(tmp_path: Path) -> None:
    found = commands(tmp_path, three())
    assert found["router"].argv[2:] == (
        "9000",
        "--prefill",
        "http://127.0.0.1:9001",
        "--decode",
        "http://127.0.0.1:9002",
    )
    assert found["router"].launched.argv[4] == "http://{host}:{prefill_port}"


def test_the_port_of_a_role_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"role router holds \{worker_port\}, but the roles are: decode, prefill"):
        LaunchTemplate.model_validate({**three().model_dump(), "roles": {
            **three().model_dump()["roles"], "router": {"argv": ["r", "{worker_port}"]},
        }})  # fmt: skip
    with pytest.raises(ValidationError, match="unknown placeholder"):
        RoleTemplate(argv=("r", "{ports}"))


# --- devices --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "prefill", "decode"),
    [(16, "0,1,2,3,4,5,6,7", "8,9,10,11,12,13,14,15"), (3, "0", "1,2"), (1, "0", "0")],
)
def test_servers_divide_the_devices_and_the_router_takes_none(
    tmp_path: Path, devices: int, prefill: str, decode: str
) -> None:
    found = commands(tmp_path, three(), devices)
    assert found["prefill"].argv[-1] == found["prefill"].env["ASCEND_RT_VISIBLE_DEVICES"] == prefill
    assert found["decode"].argv[-1] == found["decode"].env["ASCEND_RT_VISIBLE_DEVICES"] == decode
    assert "ASCEND_RT_VISIBLE_DEVICES" not in found["router"].env


# --- readiness ------------------------------------------------------------------------------


def test_all_roles_are_ready_before_the_load_begins(tmp_path: Path) -> None:
    outcome = run(tmp_path, job(decode=RolePlan(argv=("--chatter-s", "0.5"))), roles())
    assert outcome.failure is None
    assert outcome.measurement is not None
    assert outcome.durations_s[Phase.READY] >= 0.4
    assert left(tmp_path) == {}


def test_the_role_that_is_not_ready_in_time_is_named(tmp_path: Path) -> None:
    limits = Deadlines(ready_s=1.5, stall_s=20, warm_up_s=20, load_s=20, stop_s=2)
    launch = roles().model_copy(update={"deadlines": limits})
    outcome = run(tmp_path, job(prefill=RolePlan(argv=("--unhealthy",))), launch)
    assert outcome.failure is not None
    assert outcome.failure.phase is Phase.READY
    assert outcome.failure.summary.startswith("prefill: not ready after")
    assert outcome.failure.failure_class is FailureClass.START_TIMEOUT
    assert left(tmp_path) == {}


def test_a_silent_role_hangs_while_another_one_talks(tmp_path: Path) -> None:
    limits = Deadlines(ready_s=30, stall_s=1, warm_up_s=20, load_s=20, stop_s=2)
    launch = roles().model_copy(update={"deadlines": limits})
    plans = {"prefill": RolePlan(argv=("--deaf",)), "decode": RolePlan(argv=("--chatter-s", "25"))}
    outcome = run(tmp_path, job(**plans), launch)
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.HANG
    assert outcome.failure.summary.startswith("prefill: no new line in the log for 1 s")


def test_the_log_that_is_shown_is_that_of_the_role_that_ended(tmp_path: Path) -> None:
    words = "RuntimeError: Assertion failed: num_max_dispatch_tokens_per_rank >= x.size(0)"
    outcome = run(tmp_path, job(decode=RolePlan(argv=("--say", words, "--exit", "1"))), roles())
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.INVALID_CONFIG
    assert outcome.failure.summary.startswith("decode ended with exit code 1")
    assert words in outcome.failure.log_tail


def test_where_two_roles_fail_at_once_the_first_ones_own_log_decides(tmp_path: Path) -> None:
    words = "ValueError: world size (16) must be less than or equal to the number of visible devices (8)"
    memory = "NPU out of memory. Tried to allocate 2.00 GiB"
    plans = {
        "prefill": RolePlan(argv=("--say", memory, "--deaf")),
        "decode": RolePlan(argv=("--say", words, "--exit", "1")),
    }
    outcome = run(tmp_path, job(**plans), roles())
    assert outcome.failure is not None
    assert outcome.failure.decisive_line == words
    assert outcome.failure.summary.startswith("decode ended with exit code 1")


def test_a_role_that_only_says_that_something_failed_lets_the_others_speak(tmp_path: Path) -> None:
    cause = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity)"
    plans = {
        "prefill": RolePlan(argv=("--say", cause, "--deaf")),
        "decode": RolePlan(argv=("--say", "Engine core initialization failed. See root cause above.", "--exit", "1")),
    }
    outcome = run(tmp_path, job(**plans), roles())
    assert outcome.failure is not None
    assert outcome.failure.failure_class is FailureClass.OUT_OF_MEMORY


# --- the exported script --------------------------------------------------------------------


def test_the_script_starts_every_role_with_the_addresses_of_the_others(tmp_path: Path) -> None:
    launch = three("fake")
    tell = {
        name: role.model_copy(update={"argv": (sys.executable, "-S", "-c", TELL, str(tmp_path / name), *role.argv)})
        for name, role in launch.roles.items()
    }
    found = commands(tmp_path, launch.model_copy(update={"roles": tell}))
    wait = "import time; time.sleep(0.5)"  # so that none ends before the others have told
    launched = {
        name: one.launched.model_copy(
            update={"argv": tuple(f"{word}; {wait}" if word == TELL else word for word in one.launched.argv)}
        )
        for name, one in found.items()
    }
    script = to_sh(recipe(roles=launched))
    _check(script)
    env = {"PATH": os.defpath, "PORT": "7000", "HOST": "10.0.0.9", "RUN_DIR": str(tmp_path / "run")}
    subprocess.run(["bash", "-c", script], env=env, check=True, timeout=60)
    deadline = time.monotonic() + 10
    while not all((tmp_path / name).exists() for name in launched):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    told = {name: json.loads((tmp_path / name).read_text())[0] for name in launched}
    assert told["router"] == [
        *("/bin/route", "--port", "7000"),
        *("--prefill", "http://10.0.0.9:7001", "--decode", "http://10.0.0.9:7002"),
    ]
    assert told["prefill"] == ["/bin/serve", "7001", "0,1,2,3,4,5,6,7"]
    assert told["decode"] == ["/bin/serve", "7002", "8,9,10,11,12,13,14,15"]


def test_the_script_of_the_simulated_deployment_is_sound(tmp_path: Path) -> None:
    script = to_sh(recipe(roles={name: one.launched for name, one in commands(tmp_path, three()).items()}))
    _check(script)
    assert 'PORT_1="$((PORT + 1))"' in script
    assert 'http://"$HOST":"$PORT_2"' in script.replace("'http://'", "http://").replace("':'", ":")


def _check(script: str) -> None:
    command = str(SHELLCHECK) if SHELLCHECK.exists() else shutil.which("shellcheck")
    assert command is not None
    done = subprocess.run([command, "-"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
