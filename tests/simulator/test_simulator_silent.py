"""Settings without effect: what the endpoint says of them in its log, and of which it says nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.simulator.test_simulator_faults import BASE, SYSTEM
from workers.simulator.device.allocator_conf import completed_allocator
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import System, load_system
from workers.simulator.start.start_up import start_engine
from workers.simulator.vllm.configure import announcements, configure
from workers.simulator.vllm.flags import parse_flags
from workers.simulator.vllm.narration import VllmNarrator
from workers.simulator.vllm.server_log import ServerLog

STATIC = {"ascend_compilation_config": {"enable_static_kernel": True}}
PROOF = "static shape kernel will be used to accelerate aclgraph execution"


def graphs(mode: str, sizes: list[int] | None = None) -> tuple[str, str]:
    content: dict[str, Any] = {"cudagraph_mode": mode}
    return "--compilation-config", json.dumps(content | ({"cudagraph_capture_sizes": sizes} if sizes else {}))


def start(
    capsys: pytest.CaptureFixture[str],
    *flags: str,
    env: Mapping[str, str] | None = None,
    system: System | None = None,
) -> tuple[ServingConfig, str]:
    """The effective configuration and the log of a start in this process."""
    system = system or load_system(SYSTEM)
    parsed = parse_flags(["serve", str(SYSTEM), *BASE, *flags])
    config = configure(parsed, env or {}, set(), system)
    start_engine(MemoryModel(system, config), VllmNarrator(parsed, env or {}, ServerLog(sys.stderr)))
    return config, capsys.readouterr().err


def test_an_unknown_key_changes_nothing_and_is_named_only_in_the_echo(capsys: pytest.CaptureFixture[str]) -> None:
    plain, _ = start(capsys)
    config, log = start(capsys, "--additional-config", '{"enable_static_kernel":true,"enable_foo":1}')
    assert config == plain
    assert [line for line in log.splitlines() if "enable_foo" in line and "non-default args:" not in line] == []
    assert PROOF not in log


def test_an_unknown_variable_is_warned_of_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    plain, _ = start(capsys)
    config, log = start(capsys, env={"VLLM_FOO": "1"})
    assert config == plain
    assert "WARNING" in log
    assert "Unknown vLLM environment variable detected: VLLM_FOO" in log


@pytest.mark.parametrize(("mode", "used"), [("FULL_DECODE_ONLY", True), ("PIECEWISE", False), ("NONE", False)])
def test_static_kernels_prove_themselves_or_say_nothing(
    capsys: pytest.CaptureFixture[str], mode: str, used: bool
) -> None:
    flags = ("--additional-config", json.dumps(STATIC), *graphs(mode))
    config, log = start(capsys, *flags, env={"LOCAL_WORLD_SIZE": "2"})
    assert config.static_kernel is used
    assert (PROOF in log) is used
    told = [line for line in log.splitlines() if "static" in line and "non-default args:" not in line]
    assert bool(told) is used


@pytest.mark.parametrize(
    ("flags", "largest"),
    [
        (graphs("FULL_DECODE_ONLY", [1, 4, 4096]), 4),
        ((*graphs("FULL_DECODE_ONLY"), "--max-num-seqs", "100"), 96),
        (graphs("FULL_DECODE_ONLY", [1, 4, 8]), None),
        (graphs("NONE"), None),
    ],
)
def test_truncated_capture_sizes_are_said(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], largest: int | None
) -> None:
    config, log = start(capsys, *flags)
    assert config.truncated_capture_size == largest
    assert ("Truncating max_cudagraph_capture_size to" in log) is (largest is not None)
    if largest is not None:
        assert f"Truncating max_cudagraph_capture_size to {largest}\n" in log


def test_large_pages_fall_back_where_the_driver_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    system = load_system(SYSTEM)
    old = system.model_copy(update={"stack": system.stack.model_copy(update={"large_pages": False})})
    env = {"PYTORCH_NPU_ALLOC_CONF": "page_size:1g"}
    config, log = start(capsys, env=env, system=old)
    assert not config.allocator.page_size_1g
    assert "The application for 1G large-page physical memory failed" in log
    config, log = start(capsys, env=env)
    assert config.allocator.page_size_1g
    assert "large-page" not in log


def test_only_settings_with_a_variable_of_their_own_are_announced() -> None:
    flags = parse_flags(
        ["serve", "x", "--additional-config", '{"enable_flashcomm1":true,"enable_cpu_binding":true,"typo":1}']
    )
    env = {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "0", "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE": "1"}
    assert announcements(flags, env) == [
        "AscendConfig.enable_flashcomm1 is set from additional_config with value True.",
        "AscendConfig.enable_matmul_allreduce falls back to environment variable "
        "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE with value 1.",
    ]


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("", "expandable_segments:True"),
        ("page_size:1g", "page_size:1g,expandable_segments:True"),
        ("expandable_segments:False", None),
        ("max_split_size_mb:64", None),
    ],
)
def test_the_platform_completes_the_allocators_options(given: str, completed: str | None) -> None:
    assert completed_allocator(given) == completed
