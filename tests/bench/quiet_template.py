"""The built-in templates with settings of the simulation laid over them, and all the time in the world."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.domain.template import LaunchTemplate
from workers.host_templates import HostTemplates

QUIET = {"AUTOTUNE_SIM_NOISE": "off"}
PATIENCE_S = 86_400.0  # of virtual time


class QuietTemplates:
    """A `TemplateSource`. Without other settings the simulation runs without noise."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = {**({} if "AUTOTUNE_SIM_SEED" in settings else QUIET), **settings}

    def names(self) -> list[str]:
        return list(HostTemplates().names())

    def template(self, name: str) -> LaunchTemplate:
        template = HostTemplates().template(name)
        roles = {
            role: each.model_copy(update={"env": {**each.env, **self._settings}})
            for role, each in template.roles.items()
        }
        limits = template.deadlines.model_copy(update={"warm_up_s": PATIENCE_S, "load_s": PATIENCE_S})
        return template.model_copy(update={"roles": roles, "deadlines": limits})
