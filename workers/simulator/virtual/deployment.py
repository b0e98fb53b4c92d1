"""What a load talks to instead of an address: one server, or several that share the work.

Whoever drives a deployment submits every request that arrives up to its clock before it asks for the next step, so
that a request waits for the step that runs when it comes, as on a real server.
"""

from __future__ import annotations

from typing import Protocol

from workers.simulator.serving.batching import Sequence
from workers.simulator.virtual.server import Progress, VirtualServer


class Deployment(Protocol):
    """One endpoint, however many servers are behind it."""

    @property
    def now_s(self) -> float:
        """The end of the last step, or the last arrival at an idle server."""
        ...

    @property
    def max_model_len(self) -> int:
        """Tokens that a request may have, prompt and answer together; a longer one is refused."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens in a block of the prefix cache."""
        ...

    @property
    def drafts(self) -> bool:
        """Whether answers are drafted, so that their pace depends on the prompts' tokens."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget the prompts that the caches hold."""
        ...

    def submit(self, sequence: Sequence, at_s: float) -> None:
        """A request arrives. Arrivals come in the order of time."""
        ...

    def drop(self, sequence: Sequence) -> None:
        """The client has gone; nothing happens when the sequence has ended."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do."""
        ...

    def advance(self, until_s: float) -> list[Progress]:
        """At least one step, and on to the first one that ends at `until_s` or later, or ends a sequence.

        Where nothing can run, time passes until then. Raises ServerDied.
        """
        ...


class SingleServer:
    """A `Deployment` of one server that computes prompts and answers alike."""

    def __init__(self, server: VirtualServer) -> None:
        self._server = server

    @property
    def now_s(self) -> float:
        return self._server.now_s

    @property
    def max_model_len(self) -> int:
        return self._server.config.max_model_len

    @property
    def block_size(self) -> int:
        return self._server.config.block_size

    @property
    def drafts(self) -> bool:
        return self._server.config.draft_tokens > 0

    @property
    def idle(self) -> bool:
        return self._server.idle

    def reset_prefix_cache(self) -> None:
        self._server.reset_prefix_cache()

    def submit(self, sequence: Sequence, at_s: float) -> None:
        self._server.submit(sequence, at_s)

    def drop(self, sequence: Sequence) -> None:
        self._server.drop(sequence)

    def advance(self, until_s: float) -> list[Progress]:
        return self._server.advance(until_s)
