"""The devices of the host that this process runs on, as `host.yaml` of the data directory says, or as found."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from autotune.documents import file_text, read_value
from autotune.domain.device import DeviceUse, Inventory
from autotune.domain.value import Value
from autotune.errors import InvalidRequest
from workers.devices.npu_smi import NpuSmi, find_program
from workers.devices.simulated import (
    CHIP,
    DEVICES,
    DIES_PER_CARD,
    MEMORY_MB,
    registry,
    simulated_devices,
    simulated_use,
)

HOST_FILE = "host.yaml"


class DeviceKind(StrEnum):
    """Who is asked: the driver, the simulation, nobody; `auto` is the driver where there is one."""

    AUTO = "auto"
    NPU_SMI = "npu-smi"
    SIMULATED = "simulated"
    NONE = "none"


class HostFile(Value):
    """`host.yaml`. Count, dies, chip and memory are those of simulated devices; the driver knows its own."""

    devices: DeviceKind = DeviceKind.AUTO
    count: int = Field(default=DEVICES, ge=1, le=1024)
    dies_per_card: int = Field(default=DIES_PER_CARD, ge=1, le=16)
    chip: str = CHIP
    memory_mb: int = Field(default=MEMORY_MB, ge=1)


class ThisHost:
    """Implements `autotune.engine.ports.DeviceSource` for one host.

    `program` is npu-smi; looked for when it is not given. Raises InvalidRequest for a `host.yaml` that is wrong, and
    where npu-smi is asked for and absent.
    """

    def __init__(self, data_root: Path, attempts_root: Path, program: Path | None = None) -> None:
        self._name = socket.gethostname()
        path = data_root / HOST_FILE
        self._file = read_value(HostFile, file_text(path), path.name, InvalidRequest) if path.exists() else HostFile()
        self._registry = registry(attempts_root)
        self._kind = self._file.devices
        program = program or find_program()
        if self._kind is DeviceKind.AUTO:
            self._kind = DeviceKind.SIMULATED if program is None else DeviceKind.NPU_SMI
        self._driver = NpuSmi(program) if program is not None and self._kind is DeviceKind.NPU_SMI else None
        if self._kind is DeviceKind.NPU_SMI and self._driver is None:
            raise InvalidRequest(f"{HOST_FILE} asks for npu-smi, and there is none on this host")

    def inventories(self) -> Sequence[Inventory]:
        """Of this host alone. Raises Unavailable when the driver does not answer."""
        if self._driver is not None:
            devices = self._driver.devices()
        elif self._kind is DeviceKind.SIMULATED:
            file = self._file
            devices = simulated_devices(file.count, file.dies_per_card, file.chip, file.memory_mb)
        else:
            devices = ()
        return (Inventory(host=self._name, devices=devices, source=str(self._kind)),)

    def use(self, host: str) -> Mapping[int, DeviceUse] | None:
        """By device. Raises Unavailable when the driver does not answer; None for another host."""
        if host != self._name:
            return None
        return self._driver.use() if self._driver is not None else simulated_use(self._registry, self._file.count)
