"""A prefill and a decode server behind a router, on virtual time.

Each server has its own clock. The one that is behind runs first, and never past a moment at which the other could
still send it something.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from workers.simulator.model.system import System
from workers.simulator.pd.transfer import transfer_ms
from workers.simulator.serving.batching import Sequence
from workers.simulator.virtual.server import Progress, VirtualServer

HANDOVER_S = 0.004  # asking for a state and answering, and the router's way there and back; as measured on one machine


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A state on its way from prefill to decode, which has it at `at_s`."""

    held: Sequence
    sequence: Sequence
    at_s: float


class PrefillDecode:
    """A `Deployment` of two servers. The sequence that is submitted is decode's; prefill has one of its own."""

    def __init__(self, prefill: VirtualServer, decode: VirtualServer, system: System) -> None:
        self._prefill = prefill
        self._decode = decode
        self._system = system
        self._computing: dict[Sequence, Sequence] = {}  # prefill's sequence to decode's
        self._moving: list[_Transfer] = []  # in the order of their arrival

    @property
    def now_s(self) -> float:
        """The clock of the server that is behind, of those that have work."""
        busy = [server.now_s for server in (self._prefill, self._decode) if not server.idle]
        return min(busy) if busy else max(self._prefill.now_s, self._decode.now_s)

    @property
    def max_model_len(self) -> int:
        return min(self._prefill.config.max_model_len, self._decode.config.max_model_len)

    @property
    def block_size(self) -> int:
        return self._prefill.config.block_size

    @property
    def drafts(self) -> bool:
        return self._decode.config.draft_tokens > 0

    @property
    def idle(self) -> bool:
        return self._prefill.idle and self._decode.idle and not self._moving

    def reset_prefix_cache(self) -> None:
        for server in (self._prefill, self._decode):
            server.reset_prefix_cache()

    def submit(self, sequence: Sequence, at_s: float) -> None:
        held = Sequence(sequence.prompt_tokens, sequence.max_tokens, sequence.seed, blocks=sequence.blocks)
        self._computing[held] = sequence
        self._prefill.submit(held, at_s)

    def drop(self, sequence: Sequence) -> None:
        for held in [held for held, other in self._computing.items() if other is sequence]:
            del self._computing[held]
            self._prefill.drop(held)
        for transfer in [transfer for transfer in self._moving if transfer.sequence is sequence]:
            self._moving.remove(transfer)
            self._prefill.drop(transfer.held)
        self._decode.drop(sequence)

    def advance(self, until_s: float) -> list[Progress]:
        self._hand_over()
        if self._moving:
            until_s = min(until_s, self._moving[0].at_s)
        busy = [server for server in (self._prefill, self._decode) if not server.idle]
        if not busy:
            return []  # nothing is left but states on their way: decode takes them over when it is asked again
        behind, ahead = min(busy, key=_now_s), max(reversed(busy), key=_now_s)
        begun_s = behind.now_s
        found = self._run(behind, min(until_s, ahead.now_s) if ahead is not behind else until_s)
        if behind.now_s == begun_s and ahead is not behind:  # it can do nothing before the other one does
            found += self._run(ahead, until_s)
        return found

    def _run(self, server: VirtualServer, until_s: float) -> list[Progress]:
        found = server.advance(until_s)
        if server is self._decode:
            return found
        for progress in found:
            self._computed(progress)
        return []

    def _computed(self, progress: Progress) -> None:
        """The first token is there: the state sets out."""
        sequence = self._computing.pop(progress.sequence, None)
        if sequence is None:
            return
        sequence.cached = progress.sequence.cached
        sequence.transferred = True
        moving_s = transfer_ms(self._system, self._decode.config, sequence.prompt_tokens) / 1e3
        transfer = _Transfer(progress.sequence, sequence, progress.last_s + HANDOVER_S + moving_s)
        insort(self._moving, transfer, key=lambda other: other.at_s)

    def _hand_over(self) -> None:
        """States that have arrived: decode takes over, and prefill has room again."""
        while self._moving and (self._moving[0].at_s <= self._decode.now_s or self._decode.idle):
            if self._decode.idle and not self._prefill.idle and self._prefill.now_s < self._moving[0].at_s:
                return  # prefill has steps to begin before then
            transfer = self._moving.pop(0)
            self._prefill.drop(transfer.held)
            self._decode.submit(transfer.sequence, transfer.at_s)


def _now_s(server: VirtualServer) -> float:
    return server.now_s
