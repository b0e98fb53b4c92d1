"""The steps from a command line to an engine that could serve, or to the exit status of one that could not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from workers.simulator.faults import NotStarted
from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.start.machine import Machine
from workers.simulator.start.narrator import Narrator

__all__ = ["Boot", "Booted", "Family", "NotStarted", "Surface"]


class Family(StrEnum):
    """Whose HTTP surface a server has."""

    VLLM = "vllm"
    SGLANG = "sglang"


@dataclass(frozen=True, slots=True)
class Surface:
    """What clients see besides the answers: whose paths and metrics, and whether usage tells of cached tokens.

    `arguments` is what the server says of its own settings when it is asked.
    """

    family: Family = Family.VLLM
    cached_tokens: bool = False
    metrics: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Booted:
    """An engine that is ready to serve. `served_name` is what its clients call the model."""

    served_name: str
    cost: CostModel
    memory: MemoryModel
    narrator: Narrator
    surface: Surface = Surface()


class Boot(Protocol):
    """A parsed command line of one engine: where it wants to listen, and what it becomes once it may."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def narrator(self) -> Narrator: ...

    def start(self, libraries: Iterable[str], machine: Machine | None = None) -> Booted:
        """Read the system, accept or refuse the configuration, walk through the start. Raises NotStarted.

        `libraries` are paths that are mapped into the process: a preload counts only when it is really there.
        `machine` is what the start meets on its host; without one, time passes by virtually.
        """
        ...
