"""Which candidate a measurement counts for, when the engine replaced a value that it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.domain.candidate import Candidate
from autotune.domain.job import TrialOutcome
from autotune.domain.knobs import Knob, KnobValue
from autotune.domain.launch_plan import place_of
from autotune.domain.space import SearchSpace
from autotune.errors import InvalidCandidate


def counted_candidate(
    space: SearchSpace, candidate: Candidate, outcome: TrialOutcome, facts: Mapping[str, Any]
) -> Candidate | None:
    """The candidate that was really measured; None when it is the one that was asked for.

    A correction that no knob of the space can express stays with the asked candidate: its warning tells.
    """
    knobs = {(knob.role, place_of(knob.lands)): knob for knob in space.knobs}
    values = dict(candidate.values)
    for role, change in outcome.corrected:
        knob = knobs.get((role, change.setting))
        if knob is not None:
            values = _with(values, knob, change.got)
    try:
        counted = space.settle(values, facts).candidate
    except InvalidCandidate:
        return None
    return None if counted == candidate else counted


def _with(values: dict[str, KnobValue], knob: Knob, got: KnobValue) -> dict[str, KnobValue]:
    if got is None or (got is False and not knob.contains(False)):
        return {n: v for n, v in values.items() if n != knob.name} if knob.unset else values
    return {**values, knob.name: got} if knob.contains(got) else values
