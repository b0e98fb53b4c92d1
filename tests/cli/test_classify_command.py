"""`autotune classify`: a failure's page from logs alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from workers.failures.asked import asked_settings

LOGS = Path(__file__).parents[1] / "workers" / "failure_logs"
BUFFER = LOGS / "vllm-ascend" / "hccl-buffsize-hierarchy.log"
SCRIPT = """\
export HCCL_BUFFSIZE=256
# --port is not a setting of the engine's speed
vllm serve /models/m --max_num_seqs 64 --enforce-eager \\
  --compilation-config '{"cudagraph_capture_sizes": [1, 2], "pass_config": {"fuse": true}}'
"""


def classified(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "autotune.cli.main", "classify", *arguments]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)


def page(*arguments: str) -> dict[str, Any]:
    done = classified(*arguments)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_page_of_a_failure(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    asked = ["--asked", str(tmp_path / "run.sh")]
    answer = page("--engine", "vllm-ascend", "--phase", "warm_up", "--exit-code", "1", *asked, str(BUFFER))
    assert (answer["failure_class"], answer["retry"]) == ("invalid_config", "never")
    assert "600MB" in answer["decisive_line"]
    assert answer["place"]["file"] == str(BUFFER)
    assert answer["place"]["context"][3] == BUFFER.read_text().splitlines()[answer["place"]["number"] - 1]
    assert {"name": "HCCL_BUFFSIZE", "asked": "256"} in answer["settings"]
    assert {"name": "--max-num-seqs", "asked": "64"} in answer["settings"]
    assert answer["values"][0] == {
        "name": "needed",
        "value": 600.0,
        "unit": "MB",
        "setting": "HCCL_BUFFSIZE",
        "bound": "at_least",
    }
    assert answer["means"]
    assert answer["cause"]
    assert answer["does"]


def test_several_logs_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\xff\xfe\x00 nothing here\n")
    (tmp_path / "b.log").write_text("ok\nRuntimeError: error code is 507035\n")
    files = [str(tmp_path / "a.log"), str(tmp_path / "b.log")]
    answer = page("--engine", "vllm-ascend", "--phase", "load", "--exit-code", "1", *files)
    assert (answer["failure_class"], answer["retry"]) == ("device", "once")
    assert answer["place"] == {"file": files[1], "number": 2, "context": ["ok", "RuntimeError: error code is 507035"]}


def test_signals_kernel_kills_and_silence(tmp_path: Path) -> None:
    log = tmp_path / "empty.log"
    log.touch()
    at = ["--engine", "vllm", "--phase", "ready"]
    killed = page(*at, "--exit-code", "-9", "--oom-kills", "1", str(log))
    assert (killed["failure_class"], killed["place"]) == ("host_out_of_memory", None)
    assert page(*at, "--silent-for", "300", str(log))["failure_class"] == "hang"


def test_wrong_use(tmp_path: Path) -> None:
    assert classified("--engine", "vllm", "--phase", "nowhere", str(BUFFER)).returncode == 2
    absent = classified("--engine", "vllm", "--phase", "load", str(tmp_path / "absent.log"))
    assert absent.returncode == 2
    assert "No such file" in absent.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            SCRIPT,
            {
                "HCCL_BUFFSIZE": "256",
                "--max-num-seqs": "64",
                "--enforce-eager": "",
                "cudagraph_capture_sizes": "[1, 2]",
                "fuse": "true",
            },
        ),
        ('["--tp-size=4", "--tp-size", "8"]', {"--tp-size": "8"}),
        (
            '{"roles": {"server": {"env": {"A": "1"}, "argv": ["--x", "2"], "preload": null}}}',
            {"A": "1", "--x": "2"},
        ),
        ("run --flag 'open", {"--flag": ""}),
        ("", {}),
    ],
)
def test_settings_of_a_plan_or_a_script(text: str, expected: dict[str, str]) -> None:
    found = asked_settings(text)
    assert expected.items() <= found.items()
