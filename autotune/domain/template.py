"""Launch templates: the fixed part of a command line, owned by the worker host.

A study never carries a command. The template fixes argv[0], the model's path and the libraries; a study
only names a template and a model of it, and fills typed parameters from its search space.

Placeholders in `argv` and `env`: `{host} {port} {model} {model_path} {devices} {trial_dir} {python}`.
"""

from __future__ import annotations

import string
from collections.abc import Mapping

from pydantic import Field, field_validator

from autotune.domain.deployment import NAME
from autotune.domain.value import Value

PLACEHOLDERS = frozenset({"host", "port", "model", "model_path", "devices", "trial_dir", "python"})

# Never taken from a search space: they change which code runs or carry our own secrets.
DENIED_ENV_PREFIXES = ("LD_", "DYLD_", "PYTHON", "RAY_", "AUTOTUNE_")
DENIED_ENV_NAMES = frozenset(
    {"PATH", "HOME", "SHELL", "IFS", "ENV", "BASH_ENV", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
)


def is_denied_env(name: str) -> bool:
    """Whether a search space must not set this environment variable."""
    upper = name.upper()
    return upper in DENIED_ENV_NAMES or upper.startswith(DENIED_ENV_PREFIXES)


class Deadlines(Value):
    """Limits of one attempt, in seconds."""

    ready_s: float = Field(default=600, gt=0)
    stall_s: float = Field(default=300, gt=0)
    warm_up_s: float = Field(default=300, gt=0)
    load_s: float = Field(default=3600, gt=0)
    stop_s: float = Field(default=10, gt=0)


class RoleTemplate(Value):
    """How one server role is started on this host."""

    argv: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str] = Field(default_factory=dict)

    @field_validator("argv")
    @classmethod
    def _known_placeholders(cls, argv: tuple[str, ...]) -> tuple[str, ...]:
        for word in argv:
            for _, field, _, _ in string.Formatter().parse(word):
                if field is not None and field not in PLACEHOLDERS:
                    raise ValueError(f"unknown placeholder {{{field}}}; known: {', '.join(sorted(PLACEHOLDERS))}")
        return argv


class LaunchTemplate(Value):
    """One way to start one engine on this host.

    `models` maps a model name to its path; `libraries` a library name to its absolute path.
    `health_path` answers 200 when the server is ready. `simulated` marks endpoints that are no real device.
    """

    name: str = Field(pattern=NAME)
    engine: str
    about: str = ""
    roles: dict[str, RoleTemplate] = Field(min_length=1)
    models: dict[str, str] = Field(min_length=1)
    libraries: dict[str, str] = Field(default_factory=dict)
    health_path: str = "/health"
    deadlines: Deadlines = Deadlines()
    simulated: bool = False


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace each `{name}` that has a value; others stay, so that a recipe can keep `{port}` open."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text
