"""Every way in which a start fails, as a real process: exit status, decisive line and what the classifier says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.domain.failure import FailureClass, Phase
from workers.failures.classify import classify

SYSTEMS = Path(__file__).parents[2] / "workers/simulator/systems"
SYSTEM = SYSTEMS / "qwen3.5-35b-a3b-910c.yaml"
FULL = '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,4,8]}'
STATIC = '{"ascend_compilation_config":{"enable_static_kernel":true}}'
WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above."
BASE = ("-tp", "2", "--max-num-seqs", "16", "--max-model-len", "4096", "-cc", FULL)


def start(flags: tuple[str, ...], env: dict[str, str], system: Path = SYSTEM) -> tuple[int, str]:
    """Exit status and stderr of a start that fails."""
    done = subprocess.run(
        [sys.executable, "-m", "workers.simulator", "serve", str(system), "--port", "0", *flags],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


ENGINE_FAULTS: dict[str, tuple[tuple[str, ...], dict[str, str], str, FailureClass]] = {
    "static kernel": (("--additional-config", STATIC), {}, "LOCAL_WORLD_SIZE", FailureClass.COMPILE),
    "capture memory": (
        (),
        {"HCCL_BUFFSIZE": "3000"},
        "NPU out of memory. Tried to allocate",
        FailureClass.OUT_OF_MEMORY,
    ),
    "weights": (("-tp", "1"), {}, "NPU out of memory. Tried to allocate", FailureClass.OUT_OF_MEMORY),
    "cache memory": (
        ("--gpu-memory-utilization", "0.5"),
        {},
        "No available memory for the cache blocks",
        FailureClass.OUT_OF_MEMORY,
    ),
    "context": (
        ("--gpu-memory-utilization", "0.62", "--max-model-len", "262144"),
        {},
        "model's max seq len (262144)",
        FailureClass.OUT_OF_MEMORY,
    ),
    "flashcomm": (
        (),
        {"VLLM_ASCEND_ENABLE_FLASHCOMM1": "1"},
        "failed, detail:EZ9999",
        FailureClass.UNSUPPORTED_OPERATOR,
    ),
    "matmul": (
        (),
        {"VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE": "1"},
        "call aclnnMatmulAllReduce",
        FailureClass.UNSUPPORTED_OPERATOR,
    ),
    "task queue": (
        (),
        {"TASK_QUEUE_ENABLE": "2"},
        "Do not support TASK_QUEUE_ENABLE = 2 during NPU graph capture",
        FailureClass.GRAPH_CAPTURE,
    ),
    "page size": (
        (),
        {"PYTORCH_NPU_ALLOC_CONF": "page_size:2g"},
        "Unsupported page_size value: 2g",
        FailureClass.INVALID_CONFIG,
    ),
    "fixed pages": (
        (),
        {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:False,page_size:1g"},
        "Unrecognized key 'page_size'",
        FailureClass.INVALID_CONFIG,
    ),
    "exchange buffer": (
        ("--enable-expert-parallel", "-cc", '{"cudagraph_mode":"FULL_DECODE_ONLY"}', "--max-num-seqs", "256"),
        {},
        "NEEDED_HCCL_BUFFSIZE",
        FailureClass.INVALID_CONFIG,
    ),
    "expansion mode": ((), {"HCCL_OP_EXPANSION_MODE": "FAST"}, "EI0001", FailureClass.INVALID_CONFIG),
    "utilization": (
        ("--gpu-memory-utilization", "0.999"),
        {},
        "on startup is less than desired",
        FailureClass.OUT_OF_MEMORY,
    ),
}


@pytest.mark.parametrize("name", ENGINE_FAULTS)
def test_the_engine_fails_with_the_cause_before_the_wrapper(name: str) -> None:
    flags, env, fragment, failure_class = ENGINE_FAULTS[name]
    status, log = start((*BASE, *flags), env)
    assert status == 1
    assert classify(Phase.READY, status, log, "vllm-ascend").failure_class is failure_class
    assert fragment in log
    assert log.index(fragment) < log.index(WRAPPER)
    assert WRAPPER in log.splitlines()[-1]
    assert "Application startup complete" not in log


REJECTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "capture sizes": (
        ("--speculative-config", '{"method":"mtp","num_speculative_tokens":7}', "-cc", FULL.replace("8]", "7]")),
        "No valid cudagraph sizes after rounding to multiple of 8",
    ),
    "drafts": (("--speculative-config", '{"method":"mtp","num_speculative_tokens":16}'), "SpeculativeConfig"),
    "token budget": (
        ("--max-num-batched-tokens", "8"),
        "max_num_batched_tokens (8) must be greater than or equal to max_num_seqs (16)",
    ),
}


@pytest.mark.parametrize("name", REJECTIONS)
def test_the_front_end_rejects_without_a_wrapper(name: str) -> None:
    flags, fragment = REJECTIONS[name]
    status, log = start((*BASE, *flags), {})
    assert status == 1
    assert fragment in log
    assert WRAPPER not in log


@pytest.mark.parametrize(
    ("flags", "fragment"),
    [
        (("--cuda-graph-bsx", "3"), "error: unrecognized arguments: --cuda-graph-bsx"),
        (("--max-num-seqs", "abc"), "error: argument --max-num-seqs: invalid int value: 'abc'"),
    ],
)
def test_wrong_arguments_end_with_status_two(flags: tuple[str, ...], fragment: str) -> None:
    status, log = start((*BASE, *flags), {})
    assert status == 2
    assert fragment in log


def test_a_missing_system_is_said() -> None:
    status, log = start(BASE, {}, Path("/nowhere"))
    assert status == 1
    assert "Invalid repository ID or local directory specified: '/nowhere'" in log


def test_the_task_queue_runs_without_graphs_and_warnings_are_said() -> None:
    flags = (*BASE, "-cc", '{"cudagraph_mode":"NONE"}', "--gpu-memory-utilization", "0.5")  # fails after the warnings
    status, log = start(flags, {"TASK_QUEUE_ENABLE": "2", "VLLM_FOO": "1"})
    assert status == 1
    assert "Unknown vLLM environment variable detected: VLLM_FOO" in log
    assert "TASK_QUEUE_ENABLE = 2" not in log
