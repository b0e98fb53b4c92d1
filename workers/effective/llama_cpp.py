"""llama.cpp's server: slots, context and threads as it prints them at its normal verbosity."""

from __future__ import annotations

import re

from autotune.domain.effective import Corrected
from workers.effective.reading import Fact, Reading, evidence, log_lines

CONTEXT = "--ctx-size"

_THREADS = re.compile(r"threadpool init, n_threads = (\d{1,9})\b")
_SLOTS = re.compile(r"n_slots = (\d{1,9}), n_ctx_slot = (\d{1,9}), kv_unified = '(true|false)'")
_ROUNDED = re.compile(r"n_ctx is not divisible by n_seq_max - rounding \w+ to (\d{1,12})")
_CAPPED = re.compile(r"the slot context \(\d+\) exceeds the training context of the model \((\d{1,12})\) - capping")


def read(text: str) -> Reading:
    """Total and pure."""
    facts: dict[str, Fact] = {}
    rounded: str | None = None
    capped: str | None = None
    context: int | None = None
    for line in log_lines(text):
        if match := _THREADS.search(line):
            facts.setdefault("--threads", Fact(int(match[1]), evidence(line)))
        elif match := _ROUNDED.search(line):
            rounded, context = rounded or evidence(line), int(match[1])
        elif _CAPPED.search(line):
            capped = capped or evidence(line)
        elif match := _SLOTS.search(line):
            slots, each, shared = int(match[1]), int(match[2]), match[3] == "true"
            facts["--parallel"] = Fact(slots, evidence(line))
            facts["--kv-unified"] = Fact(shared, evidence(line))
            facts["--no-kv-unified"] = Fact(not shared, evidence(line))
            context = each if shared else slots * each
            facts[CONTEXT] = Fact(context, evidence(line))
    words = capped or rounded
    changes = (Corrected(setting=CONTEXT, got=context, line=words),) if words and context is not None else ()
    return Reading(facts, corrected=changes)
