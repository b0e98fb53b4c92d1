"""What is enough of a level, and what was found: the values of `autotune.domain.stopping`, which computes.

Apart from it, since that needs scipy, which takes a program half a second to import.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from autotune.domain.value import Value


class Verdict(StrEnum):
    """`precise`: known as well as was asked. `worse`: surely worse than the reference. `cap`: as many as allowed."""

    GO_ON = "go_on"
    PRECISE = "precise"
    WORSE = "worse"
    CAP = "cap"


class StopRule(Value):
    """What is enough.

    `precision`: half the interval's width as a share of the mean time per token. `most_requests`: the end in any
    case. `reference_ms`: a time per token to compare with; the level ends early once it is surely slower than that by
    more than `worse_by`. `skip_batches` at the start are those that began together, and not steady; none
    where requests come one at a time.
    """

    precision: float = Field(default=0.01, gt=0, lt=1)
    most_requests: int = Field(ge=1)
    confidence: float = Field(default=0.98, gt=0.5, lt=1)
    least_batches: int = Field(default=4, ge=3)
    skip_batches: int = Field(default=1, ge=0)
    reference_ms: float | None = Field(default=None, gt=0)
    worse_by: float = Field(default=0.02, gt=0)


class Decision(Value):
    """After so many requests, failed ones too: stop or go on, and the time per token as far as it is known.

    `half_width` is a share of the mean.
    """

    verdict: Verdict
    requests: int
    batches: int
    mean_ms: float | None = None
    half_width: float | None = None

    @property
    def stop(self) -> bool:
        return self.verdict is not Verdict.GO_ON
