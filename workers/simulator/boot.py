"""Which engine a command line belongs to. Both forms of an endpoint boot here: they refuse, fail and speak alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TextIO

from workers.simulator.sglang.boot import SglangBoot
from workers.simulator.start.booting import Boot
from workers.simulator.vllm.boot import VllmBoot

SGLANG = "launch_server"  # of `python -m sglang.launch_server`


def read_command(argv: Sequence[str], env: Mapping[str, str], out: TextIO, *, own_process: bool = False) -> Boot:
    """The engine named by the first word: vLLM's `serve`, SGLang's `launch_server`. What it says goes to `out`.

    `own_process`: nothing else runs in this process, so that the engine's modules may be imported by their real names.
    Raises SystemExit(2) for wrong arguments, after argparse wrote the reason to standard error.
    """
    if argv and argv[0] == SGLANG:
        return SglangBoot(argv[1:], env, out)
    return VllmBoot(argv, env, out, own_process=own_process)
