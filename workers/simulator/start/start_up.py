"""A start from weights to ready: the phases in order, each with its words, its time and its checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.start.exchange_checks import check_exchange
from workers.simulator.start.machine import Machine, VirtualMachine
from workers.simulator.start.narrator import Narrator
from workers.simulator.start.random_faults import LOADING, PROFILING, STARTING, RandomFault, random_fault, strike
from workers.simulator.start.start_checks import (
    check_capture,
    check_device,
    check_kv_cache,
    check_profile_run,
    check_weights,
)
from workers.simulator.variables import VISIBLE_DEVICES

# Seconds on a real host.
PROCESSES_S = 25.0  # interpreters, imports, worker processes, first communicators; assumed
WEIGHTS_S_PER_GIB = 0.15  # from the page cache; public logs: 10 s for 60 GB
PROFILE_S = 8.0  # the first forward pass and the KV cache; assumed
STATIC_KERNELS_S = 180.0  # public reports: minutes to tens of minutes, the first time
CAPTURE_S_PER_SIZE = 3.3  # public log: 83 s for 25 sizes
SHARDS = 14  # files of weights, for the progress bar


def start_engine(
    memory: MemoryModel, narrator: Narrator, env: Mapping[str, str] | None = None, machine: Machine | None = None
) -> MemoryModel:
    """Walk through the phases of a start; what the process has of its device afterwards.

    `env` holds the settings of the simulation. Raises EngineFailed at the first phase that the configuration or a
    random fault breaks, NotStarted when the process is killed, ConfigRejected for a setting that is none.
    """
    env = env or {}
    machine = machine or VirtualMachine()
    fault = random_fault(env)
    machine.expect(modelled_s(memory))
    narrator.accepted(memory)
    machine.wait(PROCESSES_S)
    _meet(fault, STARTING, machine)
    memory = replace(memory, held_gib=machine.hold(_devices(env, memory), _footprint(memory)))
    check_device(memory)
    narrator.loading(memory)
    check_weights(memory)
    _meet(fault, LOADING, machine)
    _load_weights(memory, narrator, machine)
    machine.wait(PROFILE_S)
    check_profile_run(memory)
    check_exchange(memory, machine)
    _meet(fault, PROFILING, machine)
    narrator.cache_measured(memory)
    check_kv_cache(memory)
    narrator.cache_made(memory)
    narrator.capturing(memory)
    if memory.config.capture_sizes:
        check_capture(memory)
        _capture(memory, narrator, machine)
    narrator.started(memory)
    return memory


def modelled_s(memory: MemoryModel) -> float:
    """What the whole start would take on a real host."""
    return sum((PROCESSES_S, memory.weights * WEIGHTS_S_PER_GIB, PROFILE_S, _static_s(memory), _capture_s(memory)))


def _load_weights(memory: MemoryModel, narrator: Narrator, machine: Machine) -> None:
    seconds = memory.weights * WEIGHTS_S_PER_GIB
    for done in _pieces(seconds, SHARDS, machine):
        narrator.weights_progress(done, SHARDS, seconds * done / SHARDS)
    narrator.loaded(memory, seconds)


def _capture(memory: MemoryModel, narrator: Narrator, machine: Machine) -> None:
    machine.wait(_static_s(memory))
    seconds, sizes = _capture_s(memory), len(memory.config.capture_sizes)
    for done in _pieces(seconds, sizes, machine):
        narrator.capture_progress(memory, done, sizes, seconds * done / sizes)
    narrator.captured(memory, seconds)


def _pieces(seconds: float, count: int, machine: Machine) -> Iterator[int]:
    for done in range(1, count + 1):
        machine.wait(seconds / count)
        yield done


def _static_s(memory: MemoryModel) -> float:
    return STATIC_KERNELS_S if memory.config.static_kernel else 0.0


def _capture_s(memory: MemoryModel) -> float:
    return len(memory.config.capture_sizes) * CAPTURE_S_PER_SIZE


def _meet(fault: RandomFault | None, moment: tuple[RandomFault, ...], machine: Machine) -> None:
    if fault is not None and fault in moment:
        strike(fault, machine)


def _devices(env: Mapping[str, str], memory: MemoryModel) -> list[int]:
    """The devices of the ranks, in the order in which the process sees them."""
    ranks = memory.config.tensor_parallel * memory.config.data_parallel
    named = [int(part) for part in env.get(VISIBLE_DEVICES, "").split(",") if part.strip().isdecimal()]
    return (named or list(range(ranks)))[:ranks]


def _footprint(memory: MemoryModel) -> float:
    """What the process will hold of a device once it serves, in GiB."""
    return max(memory.free_at_start - memory.left_for_load, memory.desired)
