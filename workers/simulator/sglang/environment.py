"""SGLang's own variables: a value that it does not understand counts as unset, with a warning."""

from __future__ import annotations

from collections.abc import Mapping

_TRUE = frozenset({"1", "true", "yes", "y"})
_FALSE = frozenset({"0", "false", "no", "n"})
SWITCHES = (
    "SGLANG_SET_CPU_AFFINITY",
    "SGLANG_NPU_USE_MULTI_STREAM",
    "SGLANG_ENABLE_WAR_BARRIER",
    "SGLANG_FORCE_COARSE_WAR_BARRIER",
    "SGLANG_ENABLE_OVERLAP_PLAN_STREAM",
    "USE_NPU_MOE_GATING_TOP_K",
)


def truth(env: Mapping[str, str], name: str) -> bool:
    """Whether a switch is on. Total."""
    return env.get(name, "").strip().lower() in _TRUE


def warnings(env: Mapping[str, str]) -> list[str]:
    """One line for each switch whose value is no truth value."""
    wrong = [name for name in SWITCHES if name in env and env[name].strip().lower() not in _TRUE | _FALSE]
    return [f"Invalid value for {name}: {env[name]}, using default" for name in wrong]
