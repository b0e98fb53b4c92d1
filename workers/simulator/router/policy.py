"""Which of several servers of a role gets a request."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from itertools import count

from workers.simulator.pd.peer import Peer

POLICIES = ("random", "round_robin", "cache_aware", "power_of_two")
PREFIX_BYTES = 4096  # of a request, from which requests with the same beginning are told
IMBALANCE = 8  # requests in flight by which the best-known server may lead before it is spared; assumed


class Policy:
    """Chooses by the name of a policy of the router."""

    def __init__(self, name: str, peers: Sequence[Peer]) -> None:
        self._name = name
        self._peers = tuple(peers)
        self._turn = count()
        self._random = random.Random()  # noqa: S311 - balance, no secret

    def choose(self, body: bytes) -> Peer:
        peers = self._peers
        match self._name:
            case "round_robin":
                return peers[next(self._turn) % len(peers)]
            case "random":
                return self._random.choice(peers)
            case "power_of_two":
                return min(self._random.choices(peers, k=2), key=lambda peer: peer.in_flight)
            case _:
                known = peers[zlib.crc32(body[:PREFIX_BYTES]) % len(peers)]
                idlest = min(peers, key=lambda peer: peer.in_flight)
                return idlest if known.in_flight - idlest.in_flight > IMBALANCE else known
