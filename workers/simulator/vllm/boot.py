"""A vLLM server from its command line to ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from workers.simulator.faults import ConfigRejected, EngineFailed
from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.system import load_system
from workers.simulator.start.booting import Booted, NotStarted
from workers.simulator.start.start_up import start_engine
from workers.simulator.vllm.configure import configure
from workers.simulator.vllm.flags import parse_flags
from workers.simulator.vllm.narration import VllmNarrator
from workers.simulator.vllm.server_log import ServerLog


class VllmBoot:
    """A `Boot`. Raises SystemExit(2) for wrong arguments, after argparse wrote the reason to standard error."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], out: TextIO) -> None:
        self._flags = parse_flags(argv)
        self._env = env
        self.host = self._flags.host
        self.port = self._flags.port
        self.narrator = VllmNarrator(self._flags, env, ServerLog(out))

    def start(self, libraries: Iterable[str]) -> Booted:
        flags = self._flags
        try:
            system = load_system(Path(flags.model_path))
        except (OSError, ValueError) as error:
            self.narrator.rejected(
                f"Invalid repository ID or local directory specified: '{flags.model_path}' ({error})"
            )
            raise NotStarted(1) from error
        try:
            config = configure(flags, self._env, libraries, system)
            memory = MemoryModel(system, config)
            start_engine(memory, self.narrator)
        except ConfigRejected as error:
            self.narrator.rejected(str(error))
            raise NotStarted(1) from error
        except EngineFailed as error:
            self.narrator.failed(error)
            raise NotStarted(1) from error
        return Booted(flags.served_model_name or system.model, CostModel(system, config), memory, self.narrator)
