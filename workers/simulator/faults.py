"""The ways in which a start, or a run, can fail."""

from __future__ import annotations


class ConfigRejected(Exception):
    """The engine's front end refuses the configuration before it touches a device; the text is the engine's."""


class EngineFailed(Exception):
    """The engine core fails while it starts. `kind` is the exception's type name in the log, `stage` the function."""

    def __init__(self, kind: str, message: str, stage: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.stage = stage


class DeviceOutOfMemory(EngineFailed):
    """An allocation on the device failed."""

    def __init__(self, wanted_gib: float, visible_gib: float, allocated_gib: float, stage: str) -> None:
        free = max(visible_gib - allocated_gib, 0.0)
        text = (
            f"NPU out of memory. Tried to allocate {wanted_gib:.2f} GiB (NPU 0; {visible_gib:.2f} GiB total capacity; "
            f"{allocated_gib:.2f} GiB already allocated; {allocated_gib:.2f} GiB current active; {free:.2f} GiB free; "
            f"{allocated_gib:.2f} GiB reserved in total by PyTorch)"
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
