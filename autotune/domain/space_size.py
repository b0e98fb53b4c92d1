"""How large a space is, and what its rules do to random values: estimates from seeded draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any

from autotune.domain.draws import choices, draw
from autotune.domain.expression import ExpressionError
from autotune.domain.knobs import KnobValue
from autotune.domain.space import SearchSpace, Settled
from autotune.domain.value import Value
from autotune.errors import InvalidCandidate

DRAWS = 2000
SEED = 0


class SpaceSize(Value):
    """`combinations` counts raw values, a real number as 100. The rest was seen on `draws` random draws.

    `refused`, `repaired` and `warned` are shares of the draws; the tables count draws by rule, where one draw
    may count for several. `launchable` estimates how many different launches there are; None when no draw
    was one. `unjudged` counts draws on which an expression failed, mostly for want of a fact.
    """

    combinations: int
    launchable: float | None
    draws: int
    refused: float
    repaired: float
    warned: float
    refused_by: dict[str, int]
    repaired_by: dict[str, int]
    warned_by: dict[str, int]
    unjudged: int = 0
    unjudged_why: str = ""


def estimate(space: SearchSpace, facts: Mapping[str, Any], draws: int = DRAWS, seed: int = SEED) -> SpaceSize:
    """The size of a space for a study with these facts. The same arguments give the same answer."""
    refused, repaired, warned = Counter[str](), Counter[str](), Counter[str]()
    shares: Counter[str] = Counter()
    rng = Random(seed)  # noqa: S311 - a sample, no secret
    unjudged_why = ""
    for _ in range(draws):
        try:
            settled = space.settle(draw(space, facts, rng), facts)
        except InvalidCandidate as error:
            refused.update(problem.key for problem in error.problems)
            shares["refused"] += 1
        except ExpressionError as error:
            shares["unjudged"] += 1
            unjudged_why = unjudged_why or str(error)
        else:
            names = [warning.split(":", 1)[0] for warning in settled.warnings]
            repaired.update(settled.repairs)
            warned.update(names)
            shares["repaired"] += bool(settled.repairs)
            shares["warned"] += bool(names)
    combinations = 1
    for knob in space.free_knobs():
        combinations *= choices(knob)
    return SpaceSize(
        combinations=combinations,
        launchable=_launchable(space, facts, max(1, draws // 4), rng),
        draws=draws,
        refused=shares["refused"] / draws,
        repaired=shares["repaired"] / draws,
        warned=shares["warned"] / draws,
        refused_by=dict(refused.most_common()),
        repaired_by=dict(repaired.most_common()),
        warned_by=dict(warned.most_common()),
        unjudged=shares["unjudged"],
        unjudged_why=unjudged_why,
    )


def _launchable(space: SearchSpace, facts: Mapping[str, Any], draws: int, rng: Random) -> float | None:
    """Knuth's estimate of a tree's leaves: each draw stands for as many leaves as there were ways to draw.

    Only draws that the rules leave as they are count: every launch is exactly one of those.
    """
    leaves = 0.0
    for _ in range(draws):
        try:
            values = draw(space, facts, rng, unset=None)
            settled = space.settle(values, facts)
        except (InvalidCandidate, ExpressionError):
            continue
        if _unchanged(settled, values):
            ways = 1.0
            for knob in space.free_knobs():
                ways *= choices(knob) if knob.name in values else 1
            leaves += ways
    return leaves / draws or None


def _unchanged(settled: Settled, values: Mapping[str, KnobValue]) -> bool:
    return not settled.repairs and settled.candidate.values == {n: v for n, v in values.items() if v is not None}
