"""When so many requests have failed that the rest need not be sent."""

from __future__ import annotations

from autotune.domain.workload import Workload
from workers.conclusions import MAX_ERROR_SHARE, BrokenLevel
from workers.load.prompts import WARM_UP
from workers.load.spec import LoadTally

ALL_OF_THE_FIRST = 32  # where each one of so many has failed, the others will not do better


def lost_cause(workload: Workload, level_name: str | None, tally: LoadTally) -> BrokenLevel | None:
    """The level, or without a name the warm-up, that has failed already; None while it may still succeed.

    The same share of failures decides as for a level that has ended: no level that would have been measured is
    stopped, but where every request up to then has failed.
    """
    level = next((one for one in workload.levels if one.name == level_name), None)
    name, requests = (WARM_UP, workload.warmup_requests) if level is None else (level.name, level.requests)
    certain = tally.failed > MAX_ERROR_SHARE * requests
    hopeless = tally.failed == tally.ended >= ALL_OF_THE_FIRST
    if not certain and not hopeless:
        return None
    return BrokenLevel(f"{name}: {tally.failed} of {tally.ended} requests failed", tally.error or "of unknown kind")
