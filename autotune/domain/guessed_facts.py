"""What a launch tells of its deployment and load, as the facts that expressions of a space see."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from autotune.domain.deployment import NAME, Deployment, facts
from autotune.domain.engine_spellings import spellings_of
from autotune.domain.launch_settings import MODEL, Setting
from autotune.domain.workload import LoadLevel, Workload

MODEL_FACTS = "model_facts"
MAX_DEVICES = 1024
MAX_CONCURRENCY = 1024
MAX_LEVELS = 16
PROMPT_TOKENS = 1024  # a launch says nothing of lengths: middling ones, cut to the context where that is shorter
OUTPUT_TOKENS = 256
ROLES_BY_WEIGHT = ("server", "decode", "prefill")  # decode bears the load of a split deployment


def guessed_facts(roles: Mapping[str, Sequence[Setting]]) -> tuple[dict[str, Any], frozenset[str]]:
    """Facts as of `deployment.facts`, from the flags of the heaviest role; and the names of those not told.

    Concurrency is what graphs are captured for, else the largest batch, else 1. Model facts are never told, nor
    is the number of ranks where only the shell knows it.
    """
    role = next((r for r in (*ROLES_BY_WEIGHT, *roles) if r in roles), None)
    given = _Given(roles[role] if role is not None else ())
    tensor = given.number("--tensor-parallel-size") or 1
    copies = given.number("--data-parallel-size-local") or given.number("--data-parallel-size") or 1
    if given.has("--enable-dp-attention"):
        copies = 1  # there, the copies share the devices of tensor parallelism
    devices = tensor * copies * (given.number("--pipeline-parallel-size") or 1)
    length = given.number("--max-model-len")
    tensor = min(tensor, MAX_DEVICES)
    deployment = Deployment(
        template="launch-script",
        model=given.model(),
        devices=max(tensor, min(devices, MAX_DEVICES)),
        tensor_parallel=tensor,
        max_model_len=None if length is None else min(length, 10_000_000),
    )
    prompt, output = PROMPT_TOKENS, OUTPUT_TOKENS
    if length is not None and prompt + output > length:
        prompt, output = max(1, length * 3 // 4), max(2, length // 4)
    levels = tuple(LoadLevel(concurrency=c, requests=c) for c in given.concurrencies())
    known = facts(deployment, Workload(prompt_tokens=prompt, output_tokens=output, levels=levels))
    untold = {MODEL_FACTS, *(("tensor_parallel", "devices") if given.is_open("--tensor-parallel-size") else ())}
    return known, frozenset(untold)


class _Given:
    def __init__(self, settings: Sequence[Setting]) -> None:
        self._by_key = {setting.key: setting for setting in settings}

    def has(self, flag: str) -> bool:
        return any(name in self._by_key and not self._by_key[name].negated for name in spellings_of(flag))

    def is_open(self, flag: str) -> bool:
        """Whether the flag is there, with a value that only the shell knows."""
        return any("$" in self._by_key[name].text for name in spellings_of(flag) if name in self._by_key)

    def number(self, *keys: str) -> int | None:
        """The first of the settings that is a whole number above 0."""
        for key in keys:
            for name in spellings_of(key):
                text = self._by_key[name].text if name in self._by_key else ""
                if re.fullmatch(r"[0-9]{1,9}", text) and int(text) > 0:
                    return int(text)
        return None

    def numbers(self, *keys: str) -> list[int]:
        for key in keys:
            text = self._by_key[key].text if key in self._by_key else ""
            found = [int(word) for word in re.findall(r"[0-9]{1,9}", text)]
            if found:
                return [number for number in found if number > 0]
        return []

    def model(self) -> str:
        texts = [
            self._by_key[k].text for k in ("--served-model-name", *spellings_of("--model"), MODEL) if k in self._by_key
        ]
        for text in texts:
            name = PurePosixPath(text.split(" ", 1)[0]).name
            if re.fullmatch(NAME, name):
                return name
        return "model"

    def concurrencies(self) -> list[int]:
        drafts = self.number("--speculative-config num_speculative_tokens") or 0
        sizes = self.numbers("--compilation-config cudagraph_capture_sizes")
        found = {size // (1 + drafts) for size in sizes}  # vLLM captures tokens, SGLang requests
        found |= set(self.numbers("--cuda-graph-bs-decode", "--cuda-graph-bs"))
        if not found:
            found = {self.number("--max-num-seqs", "--max-running-requests") or 1}
        fitting = sorted(c for c in found if 1 <= c <= MAX_CONCURRENCY) or [1]
        return fitting[-MAX_LEVELS:]
