"""The steps from a command line to an engine that could serve, or to the exit status of one that could not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.start.narrator import Narrator


class NotStarted(Exception):
    """The server can't start; its reason is in the log. `code` is the exit status of its process."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit status {code}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Booted:
    """An engine that is ready to serve. `served_name` is what its clients call the model."""

    served_name: str
    cost: CostModel
    memory: MemoryModel
    narrator: Narrator


class Boot(Protocol):
    """A parsed command line of one engine: where it wants to listen, and what it becomes once it may."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def narrator(self) -> Narrator: ...

    def start(self, libraries: Iterable[str]) -> Booted:
        """Read the system, accept or refuse the configuration, walk through the start. Raises NotStarted.

        `libraries` are paths that are mapped into the process: a preload counts only when it is really there.
        """
        ...
