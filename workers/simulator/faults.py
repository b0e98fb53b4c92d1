"""The ways in which a start, or a run, can fail."""

from __future__ import annotations


class ConfigRejected(Exception):
    """The engine's front end refuses the configuration before it touches a device; the text is the engine's."""


class NotStarted(Exception):
    """The server can't start; its reason is in the log. `code` is the exit status of its process."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit status {code}")
        self.code = code


class EngineFailed(Exception):
    """The engine core fails while it starts. `kind` is the exception's type name in the log, `stage` the function."""

    def __init__(self, kind: str, message: str, stage: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.stage = stage


class DeviceOutOfMemory(EngineFailed):
    """An allocation on the device failed. `allocated_gib` is the allocator's own; runtime and HCCL hold more."""

    def __init__(
        self, wanted_gib: float, visible_gib: float, allocated_gib: float, free_gib: float, stage: str
    ) -> None:
        text = (
            f"NPU out of memory. Tried to allocate {_size(wanted_gib)} (NPU 0; {visible_gib:.2f} GiB total capacity; "
            f"{allocated_gib:.2f} GiB already allocated; {allocated_gib:.2f} GiB current active; {_size(free_gib)} "
            f"free; {allocated_gib:.2f} GiB reserved in total by PyTorch) If reserved memory is >> allocated memory "
            "try setting max_split_size_mb to avoid fragmentation."
        )
        super().__init__("RuntimeError", text, stage)


def operator_failure(operator: str, stage: str) -> EngineFailed:
    """An operator that the installed operator library does not have for this chip."""
    text = (
        f"call {operator} failed, detail:EZ9999: Inner Error!\n"
        f"EZ9999: [PID: 0] {operator} has no tiling for ascend910_93, error code is 561103\n"
        "[ERROR] ERR01100 OPS call acl api failed"
    )
    return EngineFailed("RuntimeError", text, stage)


def runtime_failure(call: str, code: int, detail: str, stage: str, label: str = "") -> EngineFailed:
    """A call of the device runtime that fails, as torch_npu words it: code first, cause below, traces last.

    `label` is torch_npu's own name of a hardware fault.
    """
    head = f"{label}. " if label else ""
    text = (
        f"{head}npuSynchronizeDevice:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:506 NPU function error: {call}, "
        f"error code is {code}\n"
        "[ERROR] (PID:0, Device:0, RankID:0) ERR00100 PTA call acl api failed.\n"
        "EH9999: Inner Error!\n"
        f"        {detail}\n"
        "        TraceBack (most recent call last):"
    )
    return EngineFailed("RuntimeError", text, stage)


def _size(gib: float) -> str:
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.2f} MiB"
