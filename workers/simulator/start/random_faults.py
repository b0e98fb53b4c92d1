"""Faults that no configuration is to blame for: links, devices, a kill, a hang. How often is a setting."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from enum import StrEnum

from workers.simulator.faults import ConfigRejected, EngineFailed, runtime_failure
from workers.simulator.start.machine import Machine, number
from workers.simulator.variables import ATTEMPT, FAULT, FAULT_RATE, SEED

LINK_TIMEOUT_S = 120  # HCCL_CONNECT_TIMEOUT, its default
ENGINE_READY_S = 600  # vLLM's own limit for a start; a hang ends there if nobody ends it before
FIRST_FREEZE_STEP, LAST_FREEZE_STEP = 20, 400


class RandomFault(StrEnum):
    """What may hit a launch, by the moment at which it does."""

    SOCKET_TIMEOUT = "socket-timeout"  # while communicators are made
    DEVICE_LOST = "device-lost"  # when the device is opened
    LOADING_HANG = "loading-hang"  # silent while weights are read
    KILLED = "killed"  # SIGKILL while weights are read, as from the kernel's OOM killer
    LINK_ERROR = "link-error"  # in the first forward pass
    ECC_ERROR = "ecc-error"  # in the first forward pass
    LOAD_HANG = "load-hang"  # the engine stops stepping under load


STARTING = (RandomFault.SOCKET_TIMEOUT, RandomFault.DEVICE_LOST)
LOADING = (RandomFault.LOADING_HANG, RandomFault.KILLED)
PROFILING = (RandomFault.LINK_ERROR, RandomFault.ECC_ERROR)


def random_fault(env: Mapping[str, str]) -> RandomFault | None:
    """The fault of this launch, most often none.

    Drawn from seed and attempt, so that it repeats; without both, each process has its own. Raises ConfigRejected for
    settings that name no fault or no rate.
    """
    if name := env.get(FAULT):
        try:
            return RandomFault(name)
        except ValueError as error:
            raise ConfigRejected(f"{FAULT} must be one of {', '.join(RandomFault)}, got {name!r}") from error
    rate = number(env, FAULT_RATE, 1.0)
    dice = _dice(env, "fault")
    return dice.choice(tuple(RandomFault)) if dice.random() < rate else None


def freeze_after_steps(env: Mapping[str, str]) -> int | None:
    """After how many steps the engine of this launch stops stepping without a word; None: it does not."""
    if random_fault(env) is not RandomFault.LOAD_HANG:
        return None
    return _dice(env, "freeze").randint(FIRST_FREEZE_STEP, LAST_FREEZE_STEP)


def strike(fault: RandomFault, machine: Machine) -> None:
    """The fault happens. Raises EngineFailed with the text of CANN, HCCL or torch_npu, or NotStarted for a kill."""
    if fault is RandomFault.KILLED:
        machine.kill()
    if fault is RandomFault.LOADING_HANG:
        machine.stall(ENGINE_READY_S)
    raise _failure(fault)


def _failure(fault: RandomFault) -> EngineFailed:
    if fault is RandomFault.SOCKET_TIMEOUT:
        return EngineFailed(
            "RuntimeError",
            "createHCCLComm:torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:2147 HCCL function error: "
            "HcclCommInitRootInfoConfig, error code is 9\n"
            "[ERROR] (PID:0, Device:0, RankID:0) ERR02200 DIST call hccl api failed.\n"
            "EI0006: Getting socket times out. Reason: 1. The remote rank is not started in time. 2. The network "
            "between the devices is down.\n"
            "        [Wait][LinkEstablish]wait socket establish timeout, role[1] rank[1] "
            f"timeout[{LINK_TIMEOUT_S} s]",
            "init_worker_distributed_environment",
        )
    if fault is RandomFault.DEVICE_LOST:
        return runtime_failure("aclrtSetDevice", 507033, "open device 0 failed, runtime result = 507033", "init_device")
    if fault is RandomFault.LINK_ERROR:
        detail = "device network link error, runtime result = 507056."
        return runtime_failure("AclrtSynchronizeStreamWithTimeout", 507056, detail, "profile_run", "HCCS LINK ERROR")
    if fault is RandomFault.ECC_ERROR:
        detail = "uncorrectable error of the device's HBM, runtime result = 507054."
        return runtime_failure(
            "AclrtSynchronizeStreamWithTimeout", 507054, detail, "profile_run", "HBM MULTI BIT ECC ERROR"
        )
    return EngineFailed("TimeoutError", "RPC call to load_model timed out.", "load_model")


def _dice(env: Mapping[str, str], purpose: str) -> random.Random:
    launch = "-".join(env[name] for name in (SEED, ATTEMPT) if env.get(name)) or str(os.getpid())
    return random.Random(f"{launch}-{purpose}")  # noqa: S311 - reproducible by design, nothing here is a secret
