"""The requests of the load process as the engine sees them: lengths, and what depends on the data."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
from numpy.typing import NDArray

from workers.load.prompts import PromptSource
from workers.load.spec import LoadSpec
from workers.simulator.serving.batching import Sequence
from workers.simulator.serving.prefix_cache import prefix_chain

Tokens = NDArray[np.uint32]


class VirtualPrompts:
    """The prompts that the load process would draw, without its request bodies; a few times quicker.

    `spec` is what the load process would be told, `block_size` that of the server's prefix cache. Without `drafts`
    nothing depends on the tokens themselves, and none are drawn. Prompts are asked for in order: warm-up first, then
    level by level, since one that was used before is drawn anew. Raises PromptsExhausted for a spec that the load
    process would refuse.
    """

    def __init__(self, spec: LoadSpec, block_size: int, *, drafts: bool = True) -> None:
        PromptSource(spec)
        self._spec = spec
        self._block_size = block_size
        self._drafts = drafts
        numbers = range(spec.prompt_token_low, spec.prompt_token_high + 1)
        text = "".join(f"{number}," for number in numbers).encode()
        self._texts = np.frombuffer(text, dtype=np.uint32)  # all of three digits: four bytes each
        self._used: set[bytes] = set()
        shared = spec.workload.shared_prefix_tokens
        self._prefix = self._draw(f"{spec.study_seed}/prefix", shared if drafts else 0)

    def sequence(self, level: str, index: int) -> Sequence:
        """The next request of a level, as the server process makes it from the request's body."""
        key, workload = f"{self._spec.seed}/{level}/{index}", self._spec.workload
        seed = self._seed(self._own(key, workload.own_tokens)) if self._drafts else 0
        return self._sequence(workload.prompt_tokens, workload.output_tokens, key, seed)

    def priming(self) -> Sequence | None:
        """The request that brings the shared prefix into the cache; None without a prefix."""
        shared = self._spec.workload.shared_prefix_tokens
        return self._sequence(shared, 1, "priming", 0) if shared else None  # one token needs no draft

    def _sequence(self, tokens: int, output_tokens: int, name: str, seed: int) -> Sequence:
        shared = self._spec.workload.shared_prefix_tokens
        # Without a shared prefix no block is ever found again.
        blocks = prefix_chain("study", shared, name, tokens, self._block_size) if shared else ()
        return Sequence(tokens, output_tokens, seed, blocks=blocks)

    def _own(self, key: str, length: int) -> Tokens:
        """The tokens behind the prefix."""
        draw = 0
        while (mark := (own := self._draw(f"{key}/{draw}", length)).tobytes()) in self._used:
            draw += 1
        self._used.add(mark)
        return own

    def _seed(self, own: Tokens) -> int:
        """The server's own `request_seed` of the whole prompt."""
        tokens = np.concatenate((self._prefix, own)) if len(self._prefix) else own
        return zlib.crc32(self._texts[tokens].tobytes()[:-1])

    def _draw(self, key: str, length: int) -> Tokens:
        """Token ids, counted from the lowest one."""
        numbers = np.frombuffer(hashlib.shake_256(key.encode()).digest(4 * length), dtype="<u4")
        return numbers % np.uint32(len(self._texts))
