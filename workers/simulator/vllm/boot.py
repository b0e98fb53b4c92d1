"""A vLLM server from its command line to ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from workers.simulator.faults import ConfigRejected, EngineFailed
from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.speculation import data_set
from workers.simulator.model.system import load_system
from workers.simulator.start.booting import Booted, NotStarted, Surface
from workers.simulator.start.machine import Machine
from workers.simulator.start.start_up import start_engine
from workers.simulator.vllm.configure import configure
from workers.simulator.vllm.engine_constants import imported_constants, written_constants
from workers.simulator.vllm.flags import parse_flags
from workers.simulator.vllm.narration import VllmNarrator
from workers.simulator.vllm.server_log import ServerLog


class VllmBoot:
    """A `Boot`. `own_process`: this process is the server's, and constants are what the import hook made of them.

    Raises SystemExit(2) for wrong arguments, after argparse wrote the reason to standard error.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], out: TextIO, *, own_process: bool = False) -> None:
        self._flags = parse_flags(argv)
        self._env = env
        self._out = out
        self._own_process = own_process
        self.host = self._flags.host
        self.port = self._flags.port
        self.narrator = VllmNarrator(self._flags, env, ServerLog(out))

    def start(self, libraries: Iterable[str], machine: Machine | None = None) -> Booted:
        flags = self._flags
        try:
            constants = imported_constants() if self._own_process else written_constants(self._env, self._out)
        except EngineFailed as error:
            self.narrator.failed(error)
            raise NotStarted(1) from error
        try:
            system = load_system(Path(flags.model_path))
        except (OSError, ValueError) as error:
            self.narrator.rejected(
                f"Invalid repository ID or local directory specified: '{flags.model_path}' ({error})"
            )
            raise NotStarted(1) from error
        try:
            config = configure(flags, self._env, libraries, system, constants)
            memory = start_engine(MemoryModel(system, config), self.narrator, self._env, machine)
        except ConfigRejected as error:
            self.narrator.rejected(str(error))
            raise NotStarted(1) from error
        except EngineFailed as error:
            self.narrator.failed(error)
            raise NotStarted(1) from error
        cost = CostModel(system, config, data_set(self._env))
        surface = Surface(cached_tokens=flags.enable_prompt_tokens_details)
        return Booted(flags.served_model_name or system.model, cost, memory, self.narrator, surface)
