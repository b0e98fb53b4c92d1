"""The devices of the host that this process runs on, as `host.yaml` of the data directory says, or as found."""

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from autotune.documents import file_text, read_value
from autotune.domain.device import SETTLE_S, HostReading, Inventory
from autotune.domain.value import Value
from autotune.errors import InvalidRequest, Unavailable
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
    """`host.yaml`. Count, dies, chip and memory are those of simulated devices; the driver knows its own.

    `settle_s`: a device whose memory is not back so long after an attempt is put into quarantine.
    """

    devices: DeviceKind = DeviceKind.AUTO
    count: int = Field(default=DEVICES, ge=1, le=1024)
    dies_per_card: int = Field(default=DIES_PER_CARD, ge=1, le=16)
    chip: str = CHIP
    memory_mb: int = Field(default=MEMORY_MB, ge=1)
    settle_s: float = Field(default=SETTLE_S, gt=0, le=3600)


class ThisHost:
    """Reads the devices of one host.

    `program` is npu-smi; looked for when it is not given. Raises InvalidRequest for a `host.yaml` that is wrong, and
    where npu-smi is asked for and absent.
    """

    def __init__(self, data_root: Path, attempts_root: Path, program: Path | None = None) -> None:
        self.name = socket.gethostname()
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

    def reading(self) -> HostReading:
        """The devices and their memory now. Raises Unavailable when the driver does not answer."""
        file = self._file
        if self._driver is not None:
            devices, use = self._driver.read()
        elif self._kind is DeviceKind.SIMULATED:
            devices = simulated_devices(file.count, file.dies_per_card, file.chip, file.memory_mb)
            use = simulated_use(self._registry, file.count)
        else:
            devices, use = (), None
        inventory = Inventory(host=self.name, devices=devices, source=str(self._kind), settle_s=file.settle_s)
        return HostReading(inventory=inventory, use=use)


def read_host(data_root: Path, attempts_root: Path) -> str:
    """The `HostReading` of whichever host calls this, as JSON. Raises Unavailable, for a wrong `host.yaml` too."""
    try:
        return ThisHost(data_root, attempts_root).reading().model_dump_json()
    except InvalidRequest as error:
        raise Unavailable("; ".join([error.message, *map(str, error.problems)])) from error
