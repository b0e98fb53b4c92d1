"""Which requests met every goal. A request that failed, timed out or was cut short met none."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.domain.request_sample import RequestSample
from autotune.domain.value import Value

FIGURES: tuple[str, ...] = (
    "ttft_ms",
    "ttft_sched_ms",
    "ttfo_ms",
    "tpot_ms",
    "decode_tpot_ms",
    "e2e_ms",
    "e2e_sched_ms",
)
"""What a goal may be about: a figure that each request has for itself."""


class Goal(Value):
    """A single request has met it when its figure is at most `most_ms`."""

    figure: str
    most_ms: float

    def met_by(self, sample: RequestSample) -> bool:
        """An answer of one token has no pace, and can't miss a goal for it: its e2e is what remains to be judged."""
        paced = self.figure in ("tpot_ms", "decode_tpot_ms")
        if paced and sample.completion_tokens is not None and sample.completion_tokens < 2:
            return True
        value = getattr(sample, self.figure)
        if value is None and self.figure == "decode_tpot_ms":
            value = sample.tpot_ms
        return value is not None and value <= self.most_ms


def meets(sample: RequestSample, goals: Sequence[Goal]) -> bool:
    """Whether the request ended as planned and met them all."""
    return sample.error is None and all(goal.met_by(sample) for goal in goals)
