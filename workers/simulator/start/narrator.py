"""What an engine says while it starts, serves and dies: the text that failure classification reads."""

from __future__ import annotations

from typing import Protocol

from workers.simulator.faults import EngineFailed
from workers.simulator.model.memory_model import MemoryModel


class Narrator(Protocol):
    """One engine's log in its own words. Each method is called when its moment comes, in this order."""

    def rejected(self, message: str) -> None:
        """The front end refuses the configuration; the process ends with status 1."""
        ...

    def accepted(self, memory: MemoryModel) -> None:
        """The effective configuration, with warnings for what has no effect."""
        ...

    def loading(self, memory: MemoryModel) -> None: ...

    def weights_progress(self, done: int, total: int, seconds: float) -> None:
        """So many files of weights are read after so many seconds."""
        ...

    def loaded(self, memory: MemoryModel, seconds: float) -> None: ...

    def cache_measured(self, memory: MemoryModel) -> None:
        """After the profile run: how much memory is left for the KV cache."""
        ...

    def cache_made(self, memory: MemoryModel) -> None: ...

    def capturing(self, memory: MemoryModel) -> None:
        """Graph capture begins; also called, to say so, where graphs are off."""
        ...

    def capture_progress(self, memory: MemoryModel, done: int, total: int, seconds: float) -> None:
        """So many graphs are captured after so many seconds."""
        ...

    def captured(self, memory: MemoryModel, seconds: float) -> None: ...

    def started(self, memory: MemoryModel) -> None: ...

    def listening(self, host: str, port: int) -> None:
        """The server answers from now on."""
        ...

    def failed(self, failure: EngineFailed) -> None:
        """The engine core fails while it starts: root cause in the middle, wrapper last."""
        ...

    def died(self, failure: EngineFailed) -> None:
        """The engine core ends under load."""
        ...
