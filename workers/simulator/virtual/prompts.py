"""The requests of the load process as the engine sees them: lengths, and what depends on the data."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
from numpy.typing import NDArray

from workers.load.prompts import PromptSource
from workers.load.refusal import BadRequestsFile
from workers.load.spec import LoadSpec
from workers.simulator.serving.batching import Sequence
from workers.simulator.serving.prefix_cache import prefix_chain

Tokens = NDArray[np.uint32]


class VirtualPrompts:
    """The prompts that the load process would draw, without its request bodies; a few times quicker.

    `spec` is what the load process would be told, `block_size` that of the server's prefix cache. Without `drafts`
    nothing depends on the tokens themselves, and none are drawn. Prompts are asked for in order: warm-up first, then
    level by level, since one that was used before is drawn anew. Raises LoadRefused for a spec that the load process
    would refuse, and for one with a file of requests: virtual time knows lengths, not texts.
    """

    def __init__(self, spec: LoadSpec, block_size: int, *, drafts: bool = True) -> None:
        if spec.workload.requests_file is not None:
            raise BadRequestsFile("requests_file: virtual time knows no texts; use the executor ray, or leave it out")
        self._source = PromptSource(spec)
        self._spec = spec
        self._block_size = block_size
        self._drafts = drafts
        numbers = range(spec.prompt_token_low, spec.prompt_token_high + 1)
        text = "".join(f"{number}," for number in numbers).encode()
        self._texts = np.frombuffer(text, dtype=np.uint32)  # all of three digits: four bytes each
        self._used: set[bytes] = set()
        self._prefixes: dict[str, Tokens] = {}

    @property
    def groups(self) -> int:
        """How many shared prefixes there are."""
        return self._spec.workload.prefix_groups if self._spec.workload.shared_prefix_tokens else 0

    def sequence(self, level: str, index: int) -> Sequence:
        """The next request of a level, as the server process makes it from the request's body."""
        key, workload = f"{self._spec.seed}/{level}/{index}", self._spec.workload
        tokens, output_tokens = self._source.lengths(level, index)
        prefix = self._source.prefix_key(level, index % workload.prefix_groups)
        seed = 0
        if self._drafts:
            seed = self._seed(self._prefix(prefix), self._own(key, tokens - workload.shared_prefix_tokens))
        return self._sequence(tokens, output_tokens, prefix, key, seed)

    def priming(self, group: int) -> Sequence:
        """The request that brings the shared prefix of a group into the cache."""
        key = self._source.prefix_key("", group)
        return self._sequence(self._spec.workload.shared_prefix_tokens, 1, key, "priming", 0)  # needs no draft

    def _sequence(self, tokens: int, output_tokens: int, prefix: str, name: str, seed: int) -> Sequence:
        shared = self._spec.workload.shared_prefix_tokens
        # Without a shared prefix no block is ever found again.
        blocks = prefix_chain(prefix, shared, name, tokens, self._block_size) if shared else ()
        return Sequence(tokens, output_tokens, seed, blocks=blocks)

    def _prefix(self, key: str) -> Tokens:
        if key not in self._prefixes:
            self._prefixes[key] = self._draw(key, self._spec.workload.shared_prefix_tokens)
        return self._prefixes[key]

    def _own(self, key: str, length: int) -> Tokens:
        """The tokens behind the prefix."""
        draw = 0
        while (mark := (own := self._draw(f"{key}/{draw}", length)).tobytes()) in self._used:
            draw += 1
        self._used.add(mark)
        return own

    def _seed(self, prefix: Tokens, own: Tokens) -> int:
        """The server's own `request_seed` of the whole prompt."""
        tokens = np.concatenate((prefix, own)) if len(prefix) else own
        return zlib.crc32(self._texts[tokens].tobytes()[:-1])

    def _draw(self, key: str, length: int) -> Tokens:
        """Token ids, counted from the lowest one."""
        numbers = np.frombuffer(hashlib.shake_256(key.encode()).digest(4 * length), dtype="<u4")
        return numbers % np.uint32(len(self._texts))
