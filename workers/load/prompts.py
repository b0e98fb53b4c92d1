"""Prompts of which a cache can hold the shared prefix and nothing else: random, all different behind it, the same
again for the same seed."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path

from autotune.domain.workload import CachePolicy, LengthControl
from workers.load.exact_text import ExactText
from workers.load.refusal import BadTrace, PromptsExhausted
from workers.load.requests import CHAT_PATH, COMPLETIONS_PATH, OneRequest
from workers.load.spec import LoadSpec
from workers.load.trace import TraceEntry, read_trace

WARM_UP = "warm_up"  # the stream of prompts that no level uses
FOREIGN = "foreign/"  # before the name of a level: a stream whose prefixes are its own too


class PromptSource:
    """Prompts of one run, in order: warm-up first, then level by level.

    A prompt begins with a shared prefix of the workload's, which depends on the study's seed and its group alone; its
    rest depends on (seed, level, index) alone, so that runs can be compared request by request. Should one come out
    that was used before, which happens to few tokens only, the next draw of its own stream takes its place.

    `text`: finds words of an exact length where prompts are text. Raises PromptsExhausted and BadTrace.
    """

    def __init__(self, spec: LoadSpec, text: ExactText | None = None) -> None:
        self.continuous = False
        self._spec = spec
        self._text = text
        self._used: set[bytes] = set()
        self._tokens = range(spec.prompt_token_low, spec.prompt_token_high + 1)
        workload = spec.workload
        foreign = sum(level.cache is CachePolicy.FOREIGN for level in workload.levels)
        wanted = workload.warmup_requests * (1 + foreign) + sum(level.requests for level in workload.levels)
        length = workload.own_tokens
        if self.possible < 2 * wanted:
            own = " of their own" if workload.shared_prefix_tokens else ""
            asked = f"{wanted} different prompts of {length} tokens{own} are asked for"
            raise PromptsExhausted(f"{asked}, {self.possible} exist; raise prompt_tokens")
        self._traces = {
            level.name: read_trace(Path(level.trace_file)) for level in workload.levels if level.trace_file is not None
        }
        for name, entries in self._traces.items():
            self._check(name, entries)
        self._prefixes: dict[str, list[int]] = {}

    @property
    def possible(self) -> int:
        """How many different prompts there are, or so many that it does not matter."""
        possible: int = len(self._tokens) ** min(self._spec.workload.own_tokens, 64)
        return possible

    def prompt(self, level: str, index: int) -> list[int]:
        """The next prompt of a level, as token ids."""
        draw = 0
        length = self.lengths(level, index)[0] - self._spec.workload.shared_prefix_tokens
        key = f"{self._spec.seed}/{level}/{index}"
        while (digest := _digest(tokens := self._draw(f"{key}/{draw}", length))) in self._used:
            draw += 1
        self._used.add(digest)
        return [*self._prefix(level, index % self._spec.workload.prefix_groups), *tokens]

    def turns(self, _level: str, _number: int) -> int:
        return 1

    async def conversation(self, level: str, number: int) -> OneRequest:
        """Raises NoExactText where texts of an exact length are asked for and the server has none."""
        tokens = self.prompt(level, number)
        prompt_tokens, output = self.lengths(level, number)
        text = None if self._text is None else await self._text.of(tokens, prompt_tokens)
        return OneRequest(self.path, self.body(tokens, output, text), output)

    def bodies(self, level: str, count: int) -> Iterator[bytes]:
        """The encoded request bodies of a level, in order."""
        return (self.body(self.prompt(level, index)) for index in range(count))

    def primings(self) -> list[tuple[str, bytes]]:
        """Path and body of requests for one token, one for each shared prefix; none without a prefix."""
        workload = self._spec.workload
        if not workload.shared_prefix_tokens:
            return []
        return [(self.path, self.body(self._prefix("", group), 1)) for group in range(workload.prefix_groups)]

    def body(self, tokens: list[int], output_tokens: int | None = None, text: str | None = None) -> bytes:
        """One request: streaming, usage at the end, the asked length whatever the model says."""
        length = output_tokens or self._spec.workload.output_tokens
        exact = self._spec.workload.length_control is LengthControl.IGNORE_EOS
        common = {
            "model": self._spec.model,
            "max_tokens": length,
            "temperature": 0,
            **({"ignore_eos": True} if exact else {"min_tokens": length}),
            "stream": True,
            "stream_options": {"include_usage": True, **({"continuous_usage_stats": True} if self.continuous else {})},
        }
        if self._spec.api == "chat":
            words = " ".join(map(str, tokens)) if text is None else text
            return json.dumps({**common, "messages": [{"role": "user", "content": words}]}).encode()
        return json.dumps({**common, "prompt": tokens}).encode()

    @property
    def path(self) -> str:
        """Where the bodies go, below the base URL."""
        return CHAT_PATH if self._spec.api == "chat" else COMPLETIONS_PATH

    def prefix_key(self, level: str, group: int) -> str:
        """What the prefix of a group is drawn from; a level that is foreign has prefixes of its own."""
        key = f"{self._spec.study_seed}/prefix"
        if level.startswith(FOREIGN):
            key = f"{self._spec.seed}/{level}/prefix"
        return f"{key}/{group}" if group else key

    def lengths(self, level: str, index: int) -> tuple[int, int]:
        """Prompt and output tokens of a request: the workload's, or those of its line in a trace."""
        workload = self._spec.workload
        entry = self._entry(level, index)
        if entry is None:
            return workload.prompt_tokens, workload.output_tokens
        return entry.prompt_tokens or workload.prompt_tokens, entry.output_tokens or workload.output_tokens

    def _prefix(self, level: str, group: int) -> list[int]:
        key = self.prefix_key(level, group)
        if key not in self._prefixes:
            self._prefixes[key] = self._draw(key, self._spec.workload.shared_prefix_tokens)
        return self._prefixes[key]

    def _entry(self, level: str, index: int) -> TraceEntry | None:
        entries = self._traces.get(level)
        return entries[index] if entries is not None and index < len(entries) else None

    def _check(self, name: str, entries: tuple[TraceEntry, ...]) -> None:
        workload = self._spec.workload
        for number, entry in enumerate(entries, 1):
            prompt, output = entry.prompt_tokens or workload.prompt_tokens, entry.output_tokens or 0
            if prompt > workload.prompt_tokens or output > workload.output_tokens:
                raise BadTrace(
                    f"{name}: entry {number} of its trace asks for {prompt} prompt and {output} output tokens, the "
                    f"workload for at most {workload.prompt_tokens} and {workload.output_tokens}; raise these"
                )
            if prompt <= workload.shared_prefix_tokens:
                raise BadTrace(
                    f"{name}: entry {number} of its trace has {prompt} prompt tokens, none behind the shared prefix "
                    f"of {workload.shared_prefix_tokens}; lower shared_prefix_tokens"
                )

    def _draw(self, key: str, length: int) -> list[int]:
        # An extendable-output hash instead of `random`, whose sequences may differ between Python versions.
        numbers = struct.unpack(f"<{length}I", hashlib.shake_256(key.encode()).digest(4 * length))
        return [self._tokens[number % len(self._tokens)] for number in numbers]


def _digest(tokens: list[int]) -> bytes:
    return hashlib.sha256(repr(tokens).encode()).digest()
