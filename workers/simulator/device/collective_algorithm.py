"""`HCCL_ALGO`: which algorithm collectives use, in place of the adaptive choice."""

from __future__ import annotations

import re
from collections.abc import Mapping

from workers.simulator.faults import EngineFailed

NAME = "HCCL_ALGO"
BETWEEN_HOSTS = ("NHR", "NHR_V1", "ring", "H-D_R", "pipeline", "NB", "pairwise", "AHC", "star", "fullmesh", "NA")
_LEVEL = re.compile(r"level(?P<level>[0-2]):(?P<algorithm>[\w-]+)")


def algorithm_between_hosts(env: Mapping[str, str]) -> str | None:
    """The algorithm of level 1, None for the adaptive choice. Inside a host (level 0) nothing can be chosen.

    Raises EngineFailed for a text that HCCL refuses.
    """
    text = env.get(NAME)
    if text is None:
        return None
    levels: dict[str, str] = {}
    for part in text.split(";"):
        match = _LEVEL.fullmatch(part.strip())
        if match is None or match["algorithm"] not in BETWEEN_HOSTS:
            raise EngineFailed(
                "RuntimeError",
                f"[Config_Error_Invalid_Environment_Variable(EI0001)] Value {text} for environment variable {NAME} is "
                "invalid. Expected value: level0:NA;level1:<algorithm>.",
                "init_device",
            )
        levels[match["level"]] = match["algorithm"]
    chosen = levels.get("1", "NA")
    return None if chosen == "NA" else chosen
