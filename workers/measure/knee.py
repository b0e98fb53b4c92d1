"""The highest rate that a server keeps up with: doubled until it does not, then narrowed down."""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.domain.level import Pace
from autotune.domain.measurement import Trust
from autotune.domain.value import Value
from workers.measure.measured import Measured, Taken

NARROW = 1.10  # rates that are closer than this are one: a longer run would tell them apart, a further step not
HIGHEST_PER_S = 10_000.0  # of a level
LEAST_PER_S = 0.01
FEWEST_REQUESTS = 16  # within the time of a level: of fewer, nothing is known


class Step(Value):
    """One rate: whether it `holds`, and if not, what broke first."""

    rate_per_s: float
    holds: bool
    why: str
    ttft_p99_ms: float | None = None
    tpot_ms: float | None = None
    output_tok_s: float
    in_flight_mean: float | None = None


class Knee(Value):
    """Where the search ended. `rate_per_s`: the highest that held; None where none did."""

    rate_per_s: float | None
    breaks_at_per_s: float | None
    steps: tuple[Step, ...]


def find_knee(
    first_per_s: float, least_per_s: float, take_at: Callable[[float, int], Taken], tell: Callable[[Step], None]
) -> tuple[Knee, Taken]:
    """`take_at(rate, number of the step)` measures one rate; none below `least_per_s` but the first one is tried.

    Gives the measurement of the highest rate that holds, or of the lowest that was tried where none does. A server
    that is not at its end at the highest rate of a level has no knee: nothing breaks.
    """
    steps: list[Step] = []
    taken: dict[float, Taken] = {}

    def holds(rate: float) -> bool:
        taken[rate] = take_at(rate, len(steps))
        steps.append(step_of(rate, taken[rate].measured))
        tell(steps[-1])
        return steps[-1].holds

    low: float | None = None
    high: float | None = None
    rate = first_per_s
    while low is None or high is None:
        if holds(rate):
            low = rate
            if rate >= HIGHEST_PER_S:
                break
            rate = min(2 * rate, HIGHEST_PER_S)
        else:
            high = rate
            rate = rate / 2
            if low is None and rate < least_per_s:
                break
        if low is not None and high is not None:
            break
    while low is not None and high is not None and high / low > NARROW:
        between = _plain(math.sqrt(low * high))
        if not low < between < high:
            break
        if holds(between):
            low = between
        else:
            high = between
    knee = Knee(rate_per_s=low, breaks_at_per_s=high, steps=tuple(steps))
    return knee, taken[low if low is not None else min(taken)]


def step_of(rate_per_s: float, found: Measured) -> Step:
    """Judges one rate."""
    (level,) = found.measurement.levels.values()
    why = _broken(found)
    return Step(
        rate_per_s=rate_per_s,
        holds=why is None,
        why=why or "kept up",
        ttft_p99_ms=None if level.ttft_ms is None else level.ttft_ms.p99,
        tpot_ms=None if level.tpot_ms is None else level.tpot_ms.mean,
        output_tok_s=level.output_tok_s,
        in_flight_mean=level.in_flight_mean,
    )


def _broken(found: Measured) -> str | None:
    """What ends it first: figures that mean nothing, a limit, or a server that falls behind."""
    (level,) = found.measurement.levels.values()
    if found.measurement.trust is Trust.INVALID:
        return f"not trusted: {found.measurement.trust_reasons[0]}"
    for margin in found.margins:
        if margin.excess > 0:
            value = "undefined" if margin.value is None else f"{margin.value:.4g}"
            return f"{margin.limit} is broken: {value}"
    if level.pace is Pace.CLIENT:
        return "this host was too busy to send on time: no word on the server"
    if level.pace is not Pace.SUPPLY:
        return f"{level.concurrency} in flight, not the rate, set the pace"
    if not any(finding.rule == "supply_limited" for finding in found.measurement.findings):
        return f"{level.output_tok_s:.0f} of {level.rate_per_s or 0:g} x {_asked(found)} offered tokens/s: falls behind"
    return None


def _asked(found: Measured) -> int:
    return found.workload.output_tokens


def _plain(rate: float) -> float:
    """Three digits: the name of a level has them."""
    return float(f"{rate:.3g}")
