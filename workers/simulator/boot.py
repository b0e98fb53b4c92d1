"""Which engine a command line belongs to. Both forms of an endpoint boot here: they refuse, fail and speak alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from workers.simulator.start.booting import Boot
from workers.simulator.vllm.boot import VllmBoot


def read_command(argv: Sequence[str], env: Mapping[str, str], out: TextIO) -> Boot:
    """The engine named by the first word. What it says goes to `out`.

    Raises SystemExit(2) for wrong arguments, after argparse wrote the reason to standard error.
    """
    return VllmBoot(argv, env, out)
