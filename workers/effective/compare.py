"""What a running server does with a launch plan: applied, ignored, corrected."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from autotune.domain.effective import Corrected, EffectiveConfig, Ignored
from autotune.domain.launch_plan import RolePlan
from workers.constants.hook import unproven
from workers.effective import llama_cpp, sglang, vllm
from workers.effective.asked import asked_settings, same, scalar
from workers.effective.reading import Reading, log_lines, preload_ignored

_READERS: tuple[tuple[str, Callable[[str], Reading]], ...] = (("vllm", vllm.read), ("llama", llama_cpp.read))
_AUTOMATIC = (None, "auto", -1)  # asks for a value of the engine's own choice
_ECHO = re.compile(r"non-default args:|server_args=|\bNamespace\(")  # what was asked proves nothing


def effective(
    engine: str,
    plan: RolePlan,
    log_text: str,
    server_info: Mapping[str, Any] | None = None,
    libraries: Mapping[str, str] | None = None,
    *,
    whole: bool = True,
) -> EffectiveConfig:
    """Total and pure: any log gives a configuration.

    Of what was ignored only settings of the plan are named; corrections that the engine announces are named
    in any case. `libraries` gives the paths of the plan's preloaded libraries, `whole` is False where parts
    of the log are missing, so that a missing proof proves nothing.
    """
    reading = _read(engine, log_text, server_info)
    asked = asked_settings(plan)
    corrected = {c.setting: _with_asked(c, plan) for c in reading.corrected}
    if asked.get(vllm.STATIC_KERNEL) is True and (off := vllm.static_kernel_off(reading)):
        corrected.setdefault(off.setting, _with_asked(off, plan))
    for setting, fact in reading.facts.items():
        wanted = asked.get(setting)
        if setting in corrected or wanted in _AUTOMATIC or same(wanted, fact.value):
            continue
        if isinstance(wanted, str) and isinstance(fact.value, int | float):
            continue  # `8k` for 8192: the engine has read it, else it would have refused it
        corrected[setting] = Corrected(setting=setting, asked=wanted, got=fact.value, line=fact.line)
    ignored = {i.setting: i for i in reading.ignored if i.setting in asked}
    ignored |= {i.setting: i for i in preload_ignored(log_text, dict(libraries or {}))}
    missing = [s for s, proof in plan.proofs.items() if s not in corrected and not _proven(proof, log_text)]
    judged = whole and reading.speaks
    if judged:
        for setting in missing:
            ignored.setdefault(setting, Ignored(setting=setting))
    if whole:  # the hook's own line, in whatever form the engine speaks
        for target in unproven(plan.constants, log_text):
            ignored.setdefault(f"constant {target}", Ignored(setting=f"constant {target}"))
    return EffectiveConfig(
        applied={setting: fact.value for setting, fact in reading.facts.items()},
        ignored=tuple(ignored.values()),
        corrected=tuple(c for c in corrected.values() if not same(c.asked, c.got)),
        unproven=() if judged else tuple(missing),
    )


def _read(engine: str, log_text: str, server_info: Mapping[str, Any] | None) -> Reading:
    if engine.startswith("sglang"):
        return sglang.read(log_text, server_info)
    reader = next((read for prefix, read in _READERS if engine.startswith(prefix)), None)
    return reader(log_text) if reader else Reading({})


def _with_asked(change: Corrected, plan: RolePlan) -> Corrected:
    """Capture sizes may be asked for as a list; its largest is what the engine truncates."""
    asked = asked_settings(plan)
    wanted = asked.get(change.setting)
    sizes = asked.get(vllm.CAPTURE_SIZES)
    if wanted is None and change.setting.endswith("max_cudagraph_capture_size") and isinstance(sizes, tuple):
        wanted = max((s for s in sizes if isinstance(s, int)), default=None)
    return change.model_copy(update={"asked": scalar(wanted) if isinstance(wanted, str) else wanted})


def _proven(pattern: str, log_text: str) -> bool:
    proof = re.compile(pattern)
    return any(proof.search(line) and not _ECHO.search(line) for line in log_lines(log_text))
