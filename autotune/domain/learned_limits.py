"""How long a phase of an attempt may take, learned from earlier attempts of the same study.

A template's limits have to suit the slowest model of a host. A study knows better after a few trials: a start that
takes three times as long as any before it has failed, and its devices are wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import Field

from autotune.domain.failure import Phase
from autotune.domain.template import Deadlines
from autotune.domain.value import Value

WEIGHTS = "weights"  # parts of the phase `ready`, as durations of an outcome name them
CAPTURE = "capture"
COMPILE = "compile"
ENOUGH_TRIALS = 3  # measured ones; fewer say nothing about the spread
FACTOR = 3.0
MARGIN_S = 60.0
# A candidate may compile kernels that no earlier one did, and weights that came from the page cache may have to come
# from a remote disk: minutes where there were seconds.
LEAST_SHARE = 1 / 3
_START = ("ready_s", "weights_s", "capture_s")

_LIMIT_OF = {
    Phase.READY.value: "ready_s",
    WEIGHTS: "weights_s",
    CAPTURE: "capture_s",
    Phase.WARM_UP.value: "warm_up_s",
    Phase.LOAD.value: "load_s",
}


class PhaseLimits(Value):
    """Limits of one attempt in s; None leaves the template's."""

    ready_s: float | None = Field(default=None, gt=0)
    weights_s: float | None = Field(default=None, gt=0)
    capture_s: float | None = Field(default=None, gt=0)
    warm_up_s: float | None = Field(default=None, gt=0)
    load_s: float | None = Field(default=None, gt=0)


def learned_limits(durations_s: Iterable[Mapping[str, float]]) -> PhaseLimits | None:
    """Three times the longest and a minute more, for each phase that enough measured trials went through.

    `durations_s`: of each measured trial of the study, as its outcome has them. None where nothing is learned.
    Meant for trials of the search: a baseline and a confirmation keep the template's patience.
    """
    known = list(durations_s)
    limits = {}
    for phase, name in _LIMIT_OF.items():
        taken = [one[phase] for one in known if phase in one]
        if len(taken) >= ENOUGH_TRIALS:
            limits[name] = round(FACTOR * max(taken) + MARGIN_S, 1)
    return PhaseLimits(**limits) if limits else None


def limited(deadlines: Deadlines, learned: PhaseLimits | None) -> Deadlines:
    """The template's deadlines, shortened to what was learned and never made longer.

    A start keeps a third of the template's limit, `ready_s` where a part has none, however fast the others were.
    """
    changes: dict[str, float] = {}
    for name, limit in (learned or PhaseLimits()).model_dump(exclude_none=True).items():
        own = getattr(deadlines, name)
        least = 0.0 if name not in _START else LEAST_SHARE * (deadlines.ready_s if own is None else own)
        shorter = max(limit, least)
        if own is None or shorter < own:
            changes[name] = shorter
    return deadlines.model_copy(update=changes)
