"""Drafting and verifying: what a speculative cycle costs on top of its verification, and what it yields."""

from __future__ import annotations

from collections.abc import Mapping

from workers.simulator.model.host import launch_factor
from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import System

DATA_ENV = "AUTOTUNE_SIM_DATA"


def data_set(env: Mapping[str, str]) -> str:
    """Whose acceptance drafts meet: the value of AUTOTUNE_SIM_DATA, else that of random tokens."""
    return env.get(DATA_ENV) or "random"


def drafts_ms(system: System, config: ServingConfig, sequences: int, *, eager: bool) -> float:
    """All drafts of one cycle and its rejection sampling. Without a graph the host bounds each draft."""
    if not config.draft_tokens:
        return 0.0
    speculation = system.speculation
    one = speculation.draft_ms + speculation.draft_row_us * (sequences - 1) / 1e3
    if eager:
        one = max(one, speculation.draft_eager_ms * launch_factor(config))
    return config.draft_tokens * one + speculation.overhead_ms


def profile(system: System, data_set: str) -> tuple[float, ...]:
    """Chances by position for one data set; the first profile of the system where it has none of that name."""
    known = system.speculation.acceptance
    return known.get(data_set) or next(iter(known.values()))
