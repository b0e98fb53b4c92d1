"""Constants of the engine's modules: set by the import hook in a server process, read without one elsewhere."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.simulator.test_simulator_faults import BASE, SYSTEM
from workers.constants.hook import unproven, with_constants
from workers.simulator.boot import read_command
from workers.simulator.faults import EngineFailed
from workers.simulator.vllm.engine_constants import PLACES, EngineConstants, written_constants

WARMUPS = "vllm_ascend.platform:CUDAGRAPH_NUM_OF_WARMUPS"
THRESHOLD = "vllm_ascend.ops.weight_prefetch:MOE_PREFETCH_TOKEN_THRESHOLD"
GATING = "vllm_ascend.ops.fused_moe:FUSED_GATING"
IN_A_PROCESS = """
import sys
from workers.simulator.faults import EngineFailed
from workers.simulator.vllm.engine_constants import imported_constants
try:
    print(imported_constants().model_dump_json())
except EngineFailed as error:
    sys.exit(error.kind + ": " + error.message)
"""


def hooked(constants: Mapping[str, Any]) -> tuple[int, str, list[str]]:
    """Exit status, output and what was said of constants in a process that the worker's hook reaches."""
    env = with_constants({"PATH": os.environ["PATH"]}, constants)
    argv = [sys.executable, "-c", IN_A_PROCESS]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, [line for line in done.stderr.splitlines() if "autotune: " in line]


def written(constants: Mapping[str, Any]) -> tuple[EngineConstants, list[str]]:
    out = io.StringIO()
    found = written_constants({"AUTOTUNE_CONSTANTS": json.dumps(constants)}, out)
    return found, out.getvalue().splitlines()


@pytest.mark.parametrize("constants", [{}, {WARMUPS: 3}, {WARMUPS: 3, THRESHOLD: 1, GATING: True}], ids=len)
def test_both_ways_find_the_same_and_say_the_same(constants: dict[str, Any]) -> None:
    status, output, lines = hooked(constants)
    found, said = written(constants)
    assert status == 0
    assert EngineConstants.model_validate_json(output) == found
    assert sorted(lines) == sorted(said)
    assert unproven(constants, "\n".join(said)) == ()


@pytest.mark.parametrize(
    "constants",
    [
        {"vllm_ascend.platform:NOWHERE": 1},
        {"vllm_ascend.nowhere:LIMIT": 1},
        {"vllm_ascend.ops.nowhere:LIMIT": 1},
        {THRESHOLD: "much"},
        {THRESHOLD: True},
        {WARMUPS: 1.5},
        {GATING: 1},
        {THRESHOLD: ["1"]},
    ],
    ids=str,
)
def test_both_ways_refuse_in_the_same_words(constants: dict[str, Any]) -> None:
    status, _, lines = hooked(constants)
    out = io.StringIO()
    with pytest.raises(EngineFailed) as failure:
        written_constants({"AUTOTUNE_CONSTANTS": json.dumps(constants)}, out)
    said = out.getvalue().splitlines()
    assert status == 1
    assert [said[0], f"ImportError: {failure.value.message}"] == lines
    assert failure.value.kind == "ImportError"


def test_constants_of_other_packages_stay_unproven() -> None:
    found, said = written({"vllm.elsewhere:LIMIT": 5})
    assert found == EngineConstants()
    assert said == []


def test_defaults_are_the_engines_own() -> None:
    _, output, _ = hooked({})
    assert EngineConstants.model_validate_json(output) == EngineConstants()
    assert set(PLACES) == set(EngineConstants.model_fields)


def test_this_process_never_has_the_engines_modules() -> None:
    written({THRESHOLD: 1})
    assert not [name for name in sys.modules if name.split(".")[0] == "vllm_ascend"]


@pytest.mark.parametrize("own", [False, True], ids=["without a process", "with one"])
def test_a_server_runs_with_them(own: bool) -> None:
    constants = {WARMUPS: 3, THRESHOLD: 1}
    argv = ["serve", str(SYSTEM), "--port", "0", *BASE, "--gpu-memory-utilization", "0.5"]  # too little: ends at once
    env = with_constants({"PATH": os.environ["PATH"]}, constants)
    if own:
        command = [sys.executable, "-m", "workers.simulator", *argv]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        log = done.stderr
    else:
        booted, log = _booted([*argv, "--gpu-memory-utilization", "0.9"], env)
        assert (booted.graph_warmups, booted.prefetch_token_threshold) == (3, 1)
    assert unproven(constants, log) == ()


def _booted(argv: list[str], env: Mapping[str, str]) -> tuple[Any, str]:
    out = io.StringIO()
    booted = read_command(argv, env, out).start([])
    return booted.cost.config, out.getvalue()
