"""What a start meets on its host: time, silence, kills, memory that other processes hold."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.domain.failure import FailureClass, Phase
from workers.devices.held_memory import DEVICES_DIR, hold
from workers.failures.classify import Finding, classify
from workers.simulator.boot import read_command
from workers.simulator.faults import EngineFailed
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.settings import ServingConfig, Speculation
from workers.simulator.model.system import load_system
from workers.simulator.start.booting import NotStarted
from workers.simulator.start.exchange_checks import SILENT_S, Exchange, check_exchange, exchange
from workers.simulator.start.machine import ServerMachine, VirtualMachine
from workers.simulator.start.progress import bar
from workers.simulator.start.random_faults import RandomFault, freeze_after_steps, random_fault
from workers.simulator.start.start_checks import check_capture
from workers.simulator.start.start_up import modelled_s
from workers.simulator.variables import ATTEMPT, FAULT, FAULT_RATE, SEED, START_S

SYSTEMS = Path(__file__).parents[2] / "workers/simulator/systems"
PATH = SYSTEMS / "qwen3.5-35b-a3b-910c.yaml"
SYSTEM = load_system(PATH)
GRAPHS = '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,4,8]}'
BASE = ("-tp", "2", "--max-num-seqs", "16", "--max-model-len", "4096", "-cc", GRAPHS)
HANGING = {"HCCL_OP_EXPANSION_MODE": "AIV", "VLLM_ASCEND_ENABLE_FUSED_MC2": "1"}
EXPERTS = ServingConfig(tensor_parallel=2, expert_parallel=True, capture_sizes=(8, 16))


def command(*flags: str) -> list[str]:
    return ["serve", str(PATH), "--port", "0", *BASE, *flags]


def booted(
    env: Mapping[str, str], *flags: str, machine: ServerMachine | VirtualMachine | None = None
) -> tuple[int | None, str]:
    """Exit status and log of a start in this process; None for a start that succeeds."""
    log = io.StringIO()
    try:
        read_command(command(*flags), env, log).start([], machine)
    except NotStarted as error:
        return error.code, log.getvalue()
    return None, log.getvalue()


def found(status: int | None, log: str) -> Finding:
    return classify(Phase.READY, status, log, "vllm-ascend")


@contextmanager
def starting(log: Path, env: dict[str, str], *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        argv = [sys.executable, "-m", "workers.simulator", *command(*flags)]
        process = subprocess.Popen(argv, stderr=out, env={"PATH": os.environ["PATH"], **env})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(log: Path, fragment: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if fragment in (text := log.read_text(encoding="utf-8")):
            return text
        assert process.poll() is None, text
        time.sleep(0.02)
    raise AssertionError(f"{fragment!r} not in the log")


# --- random faults ---------------------------------------------------------------------------

CLASSES = {
    RandomFault.SOCKET_TIMEOUT: (1, FailureClass.COMMUNICATION, "Initializing a V1 LLM engine", "Starting to load"),
    RandomFault.DEVICE_LOST: (1, FailureClass.INFRASTRUCTURE, "Initializing a V1 LLM engine", "Starting to load"),
    RandomFault.LOADING_HANG: (1, FailureClass.HANG, "Starting to load", "Loading weights took"),
    RandomFault.KILLED: (-9, FailureClass.CRASH, "Starting to load", "Loading weights took"),
    RandomFault.LINK_ERROR: (1, FailureClass.INFRASTRUCTURE, "Loading weights took", "Available KV cache"),
    RandomFault.ECC_ERROR: (1, FailureClass.INFRASTRUCTURE, "Loading weights took", "Available KV cache"),
}


@pytest.mark.parametrize("fault", CLASSES)
def test_a_random_fault_strikes_at_its_moment_and_is_classified(fault: RandomFault) -> None:
    code, failure_class, before, after = CLASSES[fault]
    machine = VirtualMachine()
    status, log = booted({FAULT: fault}, machine=machine)
    assert status == code
    assert before in log
    assert after not in log
    assert found(status, log).failure_class is failure_class
    assert (machine.longest_silence_s > 0) is (fault is RandomFault.LOADING_HANG)


def test_a_kill_is_a_real_one(tmp_path: Path) -> None:
    with starting(tmp_path / "log", {FAULT: RandomFault.KILLED}) as process:
        assert process.wait(60) == -signal.SIGKILL


def test_a_hang_under_load_lets_the_start_succeed() -> None:
    assert booted({FAULT: RandomFault.LOAD_HANG})[0] is None
    assert freeze_after_steps({FAULT: RandomFault.LOAD_HANG, SEED: "1"}) is not None
    assert freeze_after_steps({FAULT: RandomFault.KILLED}) is None
    assert freeze_after_steps({}) is None


def test_the_rate_is_a_chance_per_launch_that_repeats_by_seed_and_attempt() -> None:
    def draw(rate: str, attempt: int) -> RandomFault | None:
        return random_fault({FAULT_RATE: rate, SEED: "s", ATTEMPT: str(attempt)})

    assert {draw("0", n) for n in range(50)} == {None}
    drawn = [draw("0.25", n) for n in range(400)]
    assert drawn == [draw("0.25", n) for n in range(400)]
    assert 70 < sum(fault is not None for fault in drawn) < 130
    assert {draw("1", n) for n in range(100)} == set(RandomFault)


@pytest.mark.parametrize("env", [{FAULT_RATE: "2"}, {FAULT_RATE: "often"}, {FAULT: "flood"}, {START_S: "-1"}])
def test_settings_that_are_none_are_refused(env: dict[str, str]) -> None:
    status, log = booted(env, machine=ServerMachine(env))
    assert status == 1
    assert next(iter(env)) in log


# --- exchange between experts ----------------------------------------------------------------


def test_the_buffer_bound_is_that_of_a_public_report() -> None:
    """64 rows, hidden 2048, 4 ranks of 128 experts, 10 a token: the operator asked for 294 MB."""
    weights = SYSTEM.weights.model_copy(update={"experts": 512, "experts_per_token": 10})
    network = SYSTEM.network.model_copy(update={"hidden": 2048})
    system = SYSTEM.model_copy(update={"weights": weights, "network": network})
    config = EXPERTS.model_copy(update={"tensor_parallel": 4, "capture_sizes": (256,)})
    with pytest.raises(EngineFailed, match=r"maxBs = 64, h = 2048, epWorldSize = 4.* = 294MB, HCCL_BUFFSIZE=200MB"):
        check_exchange(MemoryModel(system, config), VirtualMachine())
    check_exchange(MemoryModel(system, config.model_copy(update={"hccl_buffsize_mb": 294})), VirtualMachine())


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, Exchange.MC2),
        ({"fused_mc2": True}, Exchange.FUSED_MC2),
        ({"dispatch_capacity": 32}, Exchange.DEEPEP),
        ({"expert_parallel": False}, None),
        ({"tensor_parallel": 1}, None),
    ],
)
def test_the_exchange_follows_from_the_configuration(change: dict[str, object], kind: Exchange | None) -> None:
    assert exchange(MemoryModel(SYSTEM, EXPERTS.model_copy(update=change))) is kind


@pytest.mark.parametrize("change", [{"fused_mc2": True}, {"dispatch_capacity": 32}])
def test_vector_core_collectives_hang_beside_the_exchange_until_the_runtime_gives_up(
    change: dict[str, object],
) -> None:
    machine = VirtualMachine()
    config = EXPERTS.model_copy(update={**change, "hccl_op_expansion_mode": "AIV"})
    with pytest.raises(EngineFailed, match="error code is 107020"):
        check_exchange(MemoryModel(SYSTEM, config), machine)
    assert machine.longest_silence_s == SILENT_S
    calm = config.model_copy(update={"hccl_op_expansion_mode": None})
    check_exchange(MemoryModel(SYSTEM, calm), VirtualMachine())


def test_a_step_above_the_dispatch_capacity_fails_at_capture() -> None:
    """Report C's crash: eight requests of seven rows each."""
    speculation = Speculation(method="mtp", draft_tokens=6)
    config = EXPERTS.model_copy(update={"speculation": speculation, "capture_sizes": (28, 56)})
    check_capture(MemoryModel(SYSTEM, config.model_copy(update={"dispatch_capacity": 56})))
    with pytest.raises(EngineFailed) as failed:
        check_capture(MemoryModel(SYSTEM, config.model_copy(update={"dispatch_capacity": 35})))
    finding = found(1, f"RuntimeError: {failed.value.message}")
    assert finding.failure_class is FailureClass.INVALID_CONFIG
    assert finding.signature == "dispatch capacity"


def test_a_hanging_server_is_silent_but_alive(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with starting(log, HANGING, "--enable-expert-parallel") as process:
        wait_for(log, "Loading model weights took", process)
        time.sleep(0.2)
        text = log.read_text(encoding="utf-8")
        time.sleep(0.3)
        assert process.poll() is None
        assert log.read_text(encoding="utf-8") == text
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM
    assert found(-signal.SIGKILL, text).signature is None


# --- time ------------------------------------------------------------------------------------


def test_a_start_is_as_long_as_a_real_one_and_shows_life() -> None:
    machine = VirtualMachine()
    status, log = booted({}, machine=machine)
    assert status is None
    config = ServingConfig(tensor_parallel=2, capture_sizes=(1, 4, 8))
    assert machine.waited_s == pytest.approx(modelled_s(MemoryModel(SYSTEM, config)))
    assert 30 < machine.waited_s < 90
    assert "Loading safetensors checkpoint shards: 100% Completed |" in log
    assert [f"{n}/3 [" in log for n in (1, 2, 3)] == [True] * 3


def test_a_slow_start_takes_its_time_and_sigterm_ends_it(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert booted({}, machine=ServerMachine({START_S: "0.5"}))[0] is None
    assert time.monotonic() - begun >= 0.5
    log = tmp_path / "log"
    with starting(log, {START_S: "600"}) as process:
        wait_for(log, "Initializing a V1 LLM engine", process)
        process.terminate()
        assert process.wait(10) == -signal.SIGTERM
    assert "Application startup complete" not in log.read_text(encoding="utf-8")


def test_a_progress_bar_has_the_usual_form() -> None:
    assert bar("Capturing", 1, 4, 3.3) == "Capturing:  25%|██        | 1/4 [00:03<00:09, 3.30s/it]"
    assert bar("Capturing", 4, 4, 75.0).endswith("100%|██████████| 4/4 [01:15<00:00, 18.75s/it]")


def test_too_many_graphs_on_ai_cpu_are_warned_of() -> None:
    many = GRAPHS.replace("[1,4,8]", "[1,2,3,4,5,6,7,8]")
    assert "at most 6 of them can be in flight" in booted({"HCCL_OP_EXPANSION_MODE": "AI_CPU"}, "-cc", many)[1]
    assert "in flight" not in booted({"HCCL_OP_EXPANSION_MODE": "AI_CPU"})[1]


# --- memory that others hold -----------------------------------------------------------------


@pytest.fixture
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    process: subprocess.Popen[bytes] = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    yield process
    process.kill()
    process.wait()


def test_memory_is_held_while_the_process_lives(tmp_path: Path, neighbour: subprocess.Popen[bytes]) -> None:
    assert hold(tmp_path, [0, 1], 40.0, neighbour.pid) == 0
    assert hold(tmp_path, [1, 2], 5.0) == 40
    assert hold(tmp_path, [2], 5.0) == 0  # what this process held there is replaced
    neighbour.kill()
    os.waitid(os.P_PID, neighbour.pid, os.WEXITED | os.WNOWAIT)  # dead, not yet collected
    assert hold(tmp_path, [1], 5.0) == 0
    neighbour.wait()
    with pytest.raises(ProcessLookupError):
        hold(tmp_path, [1], 5.0, neighbour.pid)


@pytest.mark.parametrize("text", ["", "[", '{"pid": 1}', '[{"pid": "x"}]'])
def test_a_broken_book_holds_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "device0.json").write_text(text, encoding="utf-8")
    assert hold(tmp_path, [0], 5.0) == 0


def test_a_start_on_a_device_that_is_held_fails_as_infrastructure(
    tmp_path: Path, neighbour: subprocess.Popen[bytes]
) -> None:
    env = {DEVICES_DIR: str(tmp_path), "ASCEND_RT_VISIBLE_DEVICES": "4,5"}
    hold(tmp_path, [5], 40.0, neighbour.pid)
    status, log = booted(env, machine=ServerMachine(env))
    assert status == 1
    finding = found(status, log)
    assert finding.failure_class is FailureClass.INFRASTRUCTURE
    assert finding.line is not None
    assert "Free memory on device (20.56/60.96 GiB) on startup is less than desired" in finding.line
    elsewhere = {**env, "ASCEND_RT_VISIBLE_DEVICES": "6,7"}
    assert booted(elsewhere, machine=ServerMachine(elsewhere))[0] is None
    assert booted(env)[0] is None  # on virtual time nothing is held


@pytest.mark.parametrize(
    ("flags", "env"),
    [((), {"HCCL_BUFFSIZE": "3000"}), (("-tp", "1"), {}), (("--gpu-memory-utilization", "0.99"), {})],
)
def test_the_numbers_of_an_allocation_that_fails_fit_together(flags: tuple[str, ...], env: dict[str, str]) -> None:
    log = booted(env, *flags)[1]
    line = next(line for line in log.splitlines() if "NPU out of memory" in line)
    wanted, capacity, allocated, free = (gib(line, before, after) for before, after in BRACKETS)
    assert wanted > free
    assert allocated + free <= capacity


BRACKETS = (
    ("allocate ", " (NPU"),
    ("NPU 0; ", " total"),
    ("total capacity; ", " already"),
    ("current active; ", " free"),
)


def gib(line: str, before: str, after: str) -> float:
    number, unit = line.partition(before)[2].partition(after)[0].split()
    return float(number) / {"GiB": 1, "MiB": 1024}[unit]
