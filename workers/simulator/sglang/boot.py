"""An SGLang server from its command line to ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from workers.simulator.faults import ConfigRejected, EngineFailed
from workers.simulator.model.cost_model import CostModel
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.speculation import data_set
from workers.simulator.model.system import load_system
from workers.simulator.sglang.configure import configure
from workers.simulator.sglang.flags import parse_flags
from workers.simulator.sglang.narration import SglangNarrator, server_args
from workers.simulator.sglang.server_log import ServerLog
from workers.simulator.start.booting import Booted, Family, NotStarted, Surface
from workers.simulator.start.machine import Machine
from workers.simulator.start.start_up import start_engine

REFUSED = 1
TREE_KILLED = 137  # the launcher ends its own process tree with SIGKILL when a scheduler fails


class SglangBoot:
    """A `Boot`. `argv` follows `launch_server`.

    Raises SystemExit(2) for wrong arguments, after argparse wrote the reason to standard error.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], out: TextIO) -> None:
        self._flags = parse_flags(argv)
        self._env = env
        self.host = self._flags.host
        self.port = self._flags.port
        self.narrator = SglangNarrator(self._flags, env, ServerLog(out))

    def start(self, libraries: Iterable[str], machine: Machine | None = None) -> Booted:
        flags = self._flags
        try:
            system = load_system(Path(flags.model_path))
        except (OSError, ValueError) as error:
            self.narrator.rejected(
                f"OSError: {flags.model_path} does not appear to have a file named config.json. ({error})"
            )
            raise NotStarted(REFUSED) from error
        try:
            config = configure(flags, self._env, libraries, system)
            memory = start_engine(MemoryModel(system, config), self.narrator, self._env, machine)
        except ConfigRejected as error:
            self.narrator.rejected(str(error))
            raise NotStarted(REFUSED) from error
        except EngineFailed as error:
            self.narrator.failed(error)
            raise NotStarted(TREE_KILLED) from error
        cost = CostModel(system, config, data_set(self._env))
        surface = Surface(
            Family.SGLANG,
            cached_tokens=flags.enable_cache_report,
            metrics=flags.enable_metrics,
            arguments=server_args(flags, memory),
        )
        return Booted(flags.served_model_name or system.model, cost, memory, self.narrator, surface)
