"""What one engine step computes, in the numbers that its time depends on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepShape:
    """The work of one step on one rank of the data-parallel group.

    `decoding` sequences verify 1 + draft rows each and attend to `context_tokens` cached tokens together.
    `prompt_tokens` are computed on top; `attended_tokens` sums, over them, the tokens that each one attends to.
    """

    decoding: int = 0
    context_tokens: int = 0
    prompt_tokens: int = 0
    attended_tokens: int = 0
