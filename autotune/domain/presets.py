"""Loads with a name: those of published reports, to be compared with them, and a few for every day.

Figures are those of the reports' own protocols. Requests of a report's levels start at once, as they did there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # One chip, closed loops of 1, 4 and 8; each level has a warm-up at its own concurrency.
    "report-a-1k512": {
        "prompt_tokens": 1024,
        "output_tokens": 512,
        "levels": [
            {"concurrency": 1, "requests": 40, "cache": "foreign"},
            {"concurrency": 4, "requests": 80, "cache": "foreign"},
            {"concurrency": 8, "requests": 80, "cache": "foreign"},
        ],
        "warmup_requests": 20,
    },
    # Prefill and decode apart, 91 % of each prompt known: a system prompt of 117,965 tokens before 9,216 of one's own.
    "gsp-128k1k": {
        "prompt_tokens": 127_181,
        "shared_prefix_tokens": 117_965,
        "output_tokens": 1024,
        "levels": [
            {"concurrency": 48, "requests": 192, "rate_per_s": 2.0, "arrivals": "poisson", "cache": "primed"},
        ],
        "warmup_requests": 16,
        "request_timeout_s": 1800.0,
    },
    # Whether it works at all.
    "smoke": {
        "prompt_tokens": 128,
        "output_tokens": 32,
        "levels": [{"concurrency": 1, "requests": 4}],
        "warmup_requests": 1,
    },
    # Where a search for the highest rate begins; each of its runs has another rate.
    "knee": {
        "prompt_tokens": 1024,
        "output_tokens": 256,
        "levels": [{"concurrency": 256, "rate_per_s": 1.0, "arrivals": "poisson", "duration_s": 60.0}],
        "warmup_requests": 8,
        "request_timeout_s": 300.0,
    },
}


def expanded(workload: Mapping[str, Any]) -> dict[str, Any]:
    """The workload with its `preset` in full; keys beside it take the place of the preset's, `levels` as a whole.

    Raises ValueError for a name that is none.
    """
    name = workload["preset"]
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"preset: {name!r} is unknown; allowed: {', '.join(PRESETS)}")
    return {**PRESETS[name], **{key: value for key, value in workload.items() if key != "preset"}}
