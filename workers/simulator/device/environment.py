"""Environment variables of HCCL, torch_npu and the host's runtime, with their refusals."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from workers.simulator.device.allocator_conf import parse_allocator
from workers.simulator.faults import EngineFailed
from workers.simulator.model.settings import Allocator
from workers.simulator.model.system import System

ALLOCATOR = "PYTORCH_NPU_ALLOC_CONF"


def integer(env: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    """The number, None where the variable is not set. Raises EngineFailed outside [low, high]."""
    text = env.get(name)
    if text is None:
        return None
    value = int(text) if text.strip().isdecimal() else None
    if value is None or not low <= value <= high:
        raise _invalid(name, text, f"an integer in [{low}, {high}]")
    return value


def switch(env: Mapping[str, str], name: str) -> bool:
    """A variable of 0 and 1. Raises EngineFailed."""
    return bool(integer(env, name, 0, 1))


def task_queue(env: Mapping[str, str]) -> int:
    """`TASK_QUEUE_ENABLE`. Raises EngineFailed."""
    value = integer(env, "TASK_QUEUE_ENABLE", 0, 2)
    return 1 if value is None else value


def expansion_mode(env: Mapping[str, str], modes: Collection[str]) -> str | None:
    """`HCCL_OP_EXPANSION_MODE`; `modes` are those of the chip. Raises EngineFailed."""
    mode = env.get("HCCL_OP_EXPANSION_MODE")
    if mode is not None and mode not in modes:
        raise _invalid("HCCL_OP_EXPANSION_MODE", mode, " or ".join(modes))
    return mode


def cpu_affinity(env: Mapping[str, str]) -> int:
    """The mode of `CPU_AFFINITY_CONF`, its first digit. Raises EngineFailed."""
    text = env.get("CPU_AFFINITY_CONF", "0")
    return integer({"CPU_AFFINITY_CONF": text[:1]}, "CPU_AFFINITY_CONF", 0, 2) or 0


def allocator(env: Mapping[str, str], system: System, *, grows: bool) -> Allocator:
    """The device allocator's options. `grows`: segments expand unless said otherwise. Raises EngineFailed."""
    asked = parse_allocator(env.get(ALLOCATOR, ""), grows=grows)
    if not asked.page_size_1g or system.stack.large_pages:
        return asked
    return asked.model_copy(update={"page_size_1g": False, "large_pages_refused": True})


def _invalid(name: str, text: str, expected: str) -> EngineFailed:
    return EngineFailed(
        "RuntimeError",
        "[Config_Error_Invalid_Environment_Variable(EI0001)] "
        f"Value {text} for environment variable {name} is invalid. Expected value: {expected}.",
        "init_device",
    )
