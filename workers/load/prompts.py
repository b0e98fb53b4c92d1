"""Prompts of which a cache can hold the shared prefix and nothing else: random, all different behind it, the same
again for the same seed."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator

from workers.load.spec import LoadSpec

WARM_UP = "warm_up"  # the stream of prompts that no level uses


class PromptsExhausted(ValueError):
    """There are not enough different prompts of this length."""


class PromptSource:
    """Prompts of one run, in order: warm-up first, then level by level.

    A prompt begins with the workload's shared prefix, which depends on the study's seed alone; its rest depends on
    (seed, level, index) alone, so that runs can be compared request by request. Should one come out that was used
    before, which happens to few tokens only, the next draw of its own stream takes its place.
    """

    def __init__(self, spec: LoadSpec) -> None:
        self._spec = spec
        self._used: set[bytes] = set()
        self._tokens = range(spec.prompt_token_low, spec.prompt_token_high + 1)
        wanted = spec.workload.warmup_requests + sum(level.requests for level in spec.workload.levels)
        length = spec.workload.own_tokens
        possible = len(self._tokens) ** min(length, 64)
        if possible < 2 * wanted:
            own = " of their own" if spec.workload.shared_prefix_tokens else ""
            asked = f"{wanted} different prompts of {length} tokens{own} are asked for"
            raise PromptsExhausted(f"{asked}, {possible} exist; raise prompt_tokens")
        self._prefix = self._draw(f"{spec.study_seed}/prefix", spec.workload.shared_prefix_tokens)

    def prompt(self, level: str, index: int) -> list[int]:
        """The next prompt of a level, as token ids."""
        draw = 0
        length = self._spec.workload.own_tokens
        key = f"{self._spec.seed}/{level}/{index}"
        while (digest := _digest(tokens := self._draw(f"{key}/{draw}", length))) in self._used:
            draw += 1
        self._used.add(digest)
        return [*self._prefix, *tokens]

    def _draw(self, key: str, length: int) -> list[int]:
        # An extendable-output hash instead of `random`, whose sequences may differ between Python versions.
        numbers = struct.unpack(f"<{length}I", hashlib.shake_256(key.encode()).digest(4 * length))
        return [self._tokens[number % len(self._tokens)] for number in numbers]

    def bodies(self, level: str, count: int) -> Iterator[bytes]:
        """The encoded request bodies of a level, in order."""
        return (self.body(self.prompt(level, index)) for index in range(count))

    def priming_body(self) -> bytes | None:
        """A request for one token that leaves the shared prefix in the server's cache; None without a prefix."""
        return self.body(self._prefix, output_tokens=1) if self._prefix else None

    def body(self, tokens: list[int], output_tokens: int | None = None) -> bytes:
        """One request: streaming, usage at the end, the asked length whatever the model says."""
        common = {
            "model": self._spec.model,
            "max_tokens": output_tokens or self._spec.workload.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._spec.api == "chat":
            words = " ".join(map(str, tokens))
            return json.dumps({**common, "messages": [{"role": "user", "content": words}]}).encode()
        return json.dumps({**common, "prompt": tokens}).encode()

    @property
    def path(self) -> str:
        """Where the bodies go, below the base URL."""
        return "/v1/chat/completions" if self._spec.api == "chat" else "/v1/completions"


def _digest(tokens: list[int]) -> bytes:
    return hashlib.sha256(repr(tokens).encode()).digest()
