"""Which prompts share a prefix: one hash for each full block, chained, the same in every process.

Two prompts that agree in their first blocks agree in the first hashes, and in no later one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b

HASH_BYTES = 8  # among millions of blocks two that differ still have different hashes
BYTES_PER_TOKEN = 8


def block_hashes(tokens: Iterable[int], block_size: int) -> tuple[int, ...]:
    """The chain of a prompt given by its token ids (64 bit)."""
    data = memoryview(array("q", tokens)).cast("B")
    size = block_size * BYTES_PER_TOKEN
    chain = blake2b(digest_size=HASH_BYTES)
    found = []
    for end in range(size, len(data) + 1, size):
        chain.update(data[end - size : end])
        found.append(int.from_bytes(chain.copy().digest(), "little"))
    return tuple(found)


def prefix_chain(group: str, shared_tokens: int, unique: str, prompt_tokens: int, block_size: int) -> tuple[int, ...]:
    """The chain of a prompt without its tokens: `shared_tokens` are those of its group, the rest is its own.

    Prompts of one group and as many shared tokens share the full blocks of these; those of one name in `unique`
    share all. Nothing is shared with prompts of `block_hashes`.
    """
    blocks = prompt_tokens // block_size
    shared = min(shared_tokens // block_size, blocks)
    own = _first("unique", f"{group}\0{shared_tokens}\0{unique}")
    common = _first("group", group)
    return (*range(common, common + shared), *range(own + shared, own + blocks))


def _first(kind: str, name: str) -> int:
    return int.from_bytes(blake2b(f"{kind}\0{name}".encode(), digest_size=HASH_BYTES).digest(), "little")
