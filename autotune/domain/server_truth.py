"""What a server's own counters say of a load level.

Times of servers are those of their engine: without the way through the HTTP server, which the client sees too.
"""

from __future__ import annotations

from pydantic import Field

from autotune.domain.value import Value


class ServerTruth(Value):
    """Differences of one server's counters between the beginning and the end of a level; None: it does not tell.

    `finished` are requests, by reason where that is told. `cached_tokens`: prompt tokens found in the prefix cache.
    Means are over the requests that ended in the level. `graph_passes`: forward passes by mode, such as `decode_full`
    or `none` for those without a graph. `restarted`: a counter went backwards, and nothing else is told.
    `names`: the metric that each figure was read from.
    """

    engine: str
    finished: int | None = None
    finished_by_reason: dict[str, int] = Field(default_factory=dict)
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    ttft_mean_ms: float | None = None
    tpot_mean_ms: float | None = None
    queue_mean_ms: float | None = None
    prefill_mean_ms: float | None = None
    decode_mean_ms: float | None = None
    graph_passes: dict[str, int] = Field(default_factory=dict)
    restarted: bool = False
    names: dict[str, str] = Field(default_factory=dict)

    @property
    def accept_len(self) -> float | None:
        """Tokens per step and request with speculation: 1 + accepted / drafts."""
        if not self.drafts or self.accepted_tokens is None:
            return None
        return 1 + self.accepted_tokens / self.drafts

    @property
    def graph_share(self) -> float | None:
        """Share of forward passes that ran as a graph."""
        total = sum(self.graph_passes.values())
        return None if total == 0 else 1 - self.graph_passes.get("none", 0) / total
