"""The effective configuration of every role of an attempt whose servers are ready."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from autotune.domain.effective import EffectiveConfig
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import LaunchPlan, RolePlan
from autotune.domain.template import LaunchTemplate
from workers.attempt_files import HEAD_BYTES, TAIL_BYTES, AttemptFiles
from workers.effective.compare import effective
from workers.effective.sglang import INFO_PATHS
from workers.host_templates import library_path
from workers.redaction import redact

_LATE_LINES_S = 1.0  # a line may reach the log a moment after the server is ready
_TICK_S = 0.1
_ANSWER_S = 5.0


def effective_roles(
    plan: LaunchPlan, template: LaunchTemplate, files: AttemptFiles, base_url: str, secrets: Sequence[str]
) -> dict[str, EffectiveConfig]:
    """By role, with secrets masked. Waits up to 1 s for the proof of a setting.

    `base_url` is asked for `/server_info` where the engine is SGLang and has one role; a server that does not
    answer it is judged by its log.
    """
    info = _server_info(base_url) if template.engine.startswith("sglang") and len(template.roles) == 1 else None
    deadline = time.monotonic() + _LATE_LINES_S
    while True:
        found = {
            role: _of_role(role, plan.roles.get(role, RolePlan()), template, files, info) for role in template.roles
        }
        if not any(config.ignored for config in found.values()) or time.monotonic() > deadline:
            return {role: _masked(config, secrets) for role, config in found.items()}
        time.sleep(_TICK_S)


def effective_texts(
    plan: LaunchPlan,
    template: LaunchTemplate,
    texts: Mapping[str, str],
    secrets: Sequence[str],
    info: Mapping[str, Any] | None = None,
) -> dict[str, EffectiveConfig]:
    """The same from the whole log of each role, for servers that have said all that they will say."""
    return {
        role: _masked(_of_text(plan.roles.get(role, RolePlan()), template, texts[role], info), secrets)
        for role in template.roles
    }


def _of_role(
    role: str, plan: RolePlan, template: LaunchTemplate, files: AttemptFiles, info: dict[str, Any] | None
) -> EffectiveConfig:
    whole = files.log_size(role) <= HEAD_BYTES + TAIL_BYTES
    return _of_text(plan, template, files.log_text(role), info, whole=whole)


def _of_text(
    plan: RolePlan, template: LaunchTemplate, text: str, info: Mapping[str, Any] | None, *, whole: bool = True
) -> EffectiveConfig:
    libraries = {name: str(library_path(template, name)) for name in plan.preload}
    return effective(template.engine, plan, text, info, libraries, whole=whole)


def _server_info(base_url: str) -> dict[str, Any] | None:
    with httpx.Client(trust_env=False, follow_redirects=False, timeout=_ANSWER_S) as client:
        for path in INFO_PATHS:
            try:
                response = client.get(base_url + path)
                content = json.loads(response.content) if response.status_code == httpx.codes.OK else None
            except (httpx.HTTPError, ValueError, RecursionError):
                continue
            if isinstance(content, dict):
                return content
    return None


def _masked(config: EffectiveConfig, secrets: Sequence[str]) -> EffectiveConfig:
    def value(one: KnobValue) -> KnobValue:
        return redact(one, secrets) if isinstance(one, str) else one

    return EffectiveConfig(
        applied={setting: value(one) for setting, one in config.applied.items()},
        ignored=tuple(
            i.model_copy(update={"line": redact(i.line, secrets) if i.line is not None else None})
            for i in config.ignored
        ),
        corrected=tuple(
            c.model_copy(update={"asked": value(c.asked), "got": value(c.got), "line": redact(c.line, secrets)})
            for c in config.corrected
        ),
        unproven=config.unproven,
    )
