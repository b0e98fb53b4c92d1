"""One request inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.simulator.serving.acceptance import Acceptance
from workers.simulator.serving.kv_cache import BlockTable


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and its answer. `arrived_s` is on the engine's clock.

    `blocks` is the hash chain of the prompt's full blocks; without it nothing is shared. `cached` tokens of the
    prompt were found in the prefix cache, known once the sequence runs. `computed` tokens have their KV in the cache.
    `transferred`: the prompt and its first token were computed by another server. `prompt_only`: the first token
    is the last one here. `table` is there while the sequence holds blocks, on `rank` of the data-parallel group.
    """

    prompt_tokens: int
    max_tokens: int
    seed: int
    arrived_s: float = 0.0
    computed: int = 0
    generated: int = 0
    blocks: tuple[int, ...] = ()
    transferred: bool = False
    cached: int = 0
    prompt_only: bool = False
    preempted: int = 0
    rank: int = 0
    table: BlockTable | None = None
    acceptance: Acceptance = field(init=False)

    def __post_init__(self) -> None:
        self.acceptance = Acceptance(self.seed)

    @property
    def known(self) -> int:
        """Tokens of the prompt and the answer so far."""
        return self.prompt_tokens + self.generated

    @property
    def decodes(self) -> bool:
        """Only the KV of its newest token is missing."""
        return self.generated > 0 and self.computed == self.known - 1

    @property
    def finished(self) -> bool:
        return self.generated >= (1 if self.prompt_only else self.max_tokens)
