"""The KV cache of one rank: blocks that sequences hold, and full blocks of prompts that outlive them.

A prompt's full block gets its hash once it is computed. Sequences with the same prefix refer to it together; when
nobody does, it stays until its place is needed, the longest unused one first. A block that leaves the device can
go to a pool in host memory and comes back at the next hit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence: the hashed ones in the order of its prompt, and how many without a hash."""

    hashed: list[int] = field(default_factory=list)
    plain: int = 0
    published: int = 0  # full blocks of the prompt that were offered to others

    @property
    def blocks(self) -> int:
        return len(self.hashed) + self.plain


@dataclass(frozen=True, slots=True)
class Hit:
    """Leading blocks of a prompt that the cache holds: on the device first, then in the host's pool."""

    device: int = 0
    host: int = 0

    @property
    def blocks(self) -> int:
        return self.device + self.host


class KvCache:
    """`capacity` and `host_capacity` in blocks."""

    def __init__(self, capacity: int, host_capacity: int = 0) -> None:
        self.capacity = capacity
        self.host_capacity = host_capacity
        self._blank = capacity
        self._users: dict[int, int] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()  # the longest unused first
        self._host: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that a sequence can get; what prefixes nobody uses is among them."""
        return self._blank + len(self._unused)

    @property
    def held(self) -> int:
        return self.capacity - self.free

    @property
    def cached(self) -> int:
        """Blocks on the device that a later prompt can share."""
        return len(self._users) + len(self._unused)

    @property
    def host_cached(self) -> int:
        return len(self._host)

    def find(self, chain: Sequence[int]) -> Hit:
        """How much of a chain is there. Nothing changes."""
        device = 0
        while device < len(chain) and self._on_device(chain[device]):
            device += 1
        host = device
        while host < len(chain) and (chain[host] in self._host or self._on_device(chain[host])):
            host += 1
        return Hit(device, host - device)

    def open(self, chain: Sequence[int], hit: Hit, blocks: int) -> BlockTable | None:
        """A table of so many blocks that begins with what was found of the chain; None when there is no room."""
        found = chain[: hit.blocks]
        revived = sum(block in self._unused for block in found)
        fresh = blocks - sum(self._on_device(block) for block in found)
        if fresh > self.free - revived:
            return None
        loaded = []
        for block in found:
            if self._on_device(block):
                self._unused.pop(block, None)
                self._users[block] = self._users.get(block, 0) + 1
            else:
                del self._host[block]  # before anything is pushed out to the host
                loaded.append(block)
        self._take(fresh)
        self._users.update(dict.fromkeys(loaded, 1))
        return BlockTable(list(found), blocks - len(found), len(found))

    def grow(self, table: BlockTable, blocks: int) -> bool:
        """Have at least so many blocks in a table; False, and nothing changes, when there is no room."""
        more = blocks - table.blocks
        if more > self.free:
            return False
        if more > 0:
            self._take(more)
            table.plain += more
        return True

    def publish(self, table: BlockTable, chain: Sequence[int], blocks: int) -> None:
        """The first blocks of a chain are computed: others may share them.

        A block that another sequence has published meanwhile stays this sequence's own.
        """
        for block in chain[table.published : blocks]:
            if not self._on_device(block):
                self._host.pop(block, None)
                self._users[block] = 1
                table.hashed.append(block)
                table.plain -= 1
        table.published = max(table.published, min(blocks, len(chain)))

    def close(self, table: BlockTable) -> None:
        """Give all blocks of a table back; the end of a prefix goes before its beginning."""
        self._blank += table.plain
        for block in reversed(table.hashed):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
            else:
                del self._users[block]
                self._unused[block] = None
        table.hashed, table.plain, table.published = [], 0, 0

    def reset(self) -> None:
        """Forget the prefixes that nobody uses, and the host's pool."""
        self._blank += len(self._unused)
        self._unused.clear()
        self._host.clear()

    def _on_device(self, block: int) -> bool:
        return block in self._users or block in self._unused

    def _take(self, blocks: int) -> None:
        """Empty blocks first, then the longest unused prefixes."""
        blank = min(blocks, self._blank)
        self._blank -= blank
        for _ in range(blocks - blank):
            evicted, _nothing = self._unused.popitem(last=False)
            if self.host_capacity:
                self._host[evicted] = None
                if len(self._host) > self.host_capacity:
                    self._host.popitem(last=False)
