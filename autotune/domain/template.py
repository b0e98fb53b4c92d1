"""Launch templates: the fixed part of a command line, owned by the worker host.

A study never carries a command. The template fixes argv[0], the model's path and the libraries; a study
only names a template and a model of it, and fills typed parameters from its search space.

Placeholders in `argv` and `env`: `{host} {port} {model} {model_path} {devices} {trial_dir} {python} {stack}`, and
`{decode_port}` for the port of the role `decode`. All roles of a template run on one host.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping

from pydantic import Field, field_validator, model_validator

from autotune.domain.deployment import NAME
from autotune.domain.stack import StackVersions
from autotune.domain.value import Value

PLACEHOLDERS = frozenset({"host", "port", "model", "model_path", "devices", "trial_dir", "python", "stack"})
PORT_SUFFIX = "_port"
_PORT_OF = re.compile(r"\{([A-Za-z0-9._-]+)_port\}")

# Never taken from a search space: they change which code runs or carry our own secrets.
DENIED_ENV_PREFIXES = ("LD_", "DYLD_", "PYTHON", "RAY_", "AUTOTUNE_")
DENIED_ENV_NAMES = frozenset(
    {"PATH", "HOME", "SHELL", "IFS", "ENV", "BASH_ENV", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
)

# Set by the worker alone: `{"package.module:NAME": value}` for the import hook that stands first on PYTHONPATH.
CONSTANTS_VARIABLE = "AUTOTUNE_CONSTANTS"


def is_denied_env(name: str) -> bool:
    """Whether a search space must not set this environment variable."""
    upper = name.upper()
    return upper in DENIED_ENV_NAMES or upper.startswith(DENIED_ENV_PREFIXES)


class Deadlines(Value):
    """Limits of one attempt, in seconds.

    `weights_s` and `capture_s` are parts of `ready_s`: reading the weights and capturing graphs, for engines whose
    log tells of them. `stall_s`: no new line in the log while starting. `token_stall_s`: no new token of any request
    under load; as `stall_s` where it is not given.
    """

    ready_s: float = Field(default=600, gt=0)
    weights_s: float | None = Field(default=None, gt=0)
    capture_s: float | None = Field(default=None, gt=0)
    stall_s: float = Field(default=300, gt=0)
    token_stall_s: float | None = Field(default=None, gt=0)
    warm_up_s: float = Field(default=300, gt=0)
    load_s: float = Field(default=3600, gt=0)
    stop_s: float = Field(default=10, gt=0)


class RoleTemplate(Value):
    """How one server role is started on this host. A role without `takes_devices` computes nothing on a device."""

    argv: tuple[str, ...] = Field(min_length=1)
    env: dict[str, str] = Field(default_factory=dict)
    takes_devices: bool = True

    @field_validator("argv")
    @classmethod
    def _known_placeholders(cls, argv: tuple[str, ...]) -> tuple[str, ...]:
        for word in argv:
            for _, field, _, _ in string.Formatter().parse(word):
                if field is not None and field not in PLACEHOLDERS and not field.endswith(PORT_SUFFIX):
                    raise ValueError(f"unknown placeholder {{{field}}}; known: {', '.join(sorted(PLACEHOLDERS))}")
        return argv

    @property
    def named_ports(self) -> frozenset[str]:
        """The roles whose ports this one is told."""
        texts = (*self.argv, *self.env.values())
        return frozenset(name for text in texts for name in _PORT_OF.findall(text))

    @property
    def takes_stack(self) -> bool:
        """Whether the role is started differently on each stack."""
        return any("{stack}" in text for text in (*self.argv, *self.env.values()))


class StackVariant(Value):
    """One of the stacks that a template can start: `value` fills `{stack}`.

    `versions` says what is different in it; a part that is not given is the template's own.
    """

    value: str = Field(min_length=1)
    versions: StackVersions | None = None


class LaunchTemplate(Value):
    """One way to start one engine on this host.

    `models` maps a model name to its path; `libraries` a library name to its absolute path. `versions` is what
    is installed where it starts, `stacks` the environments or images that a candidate may choose from.
    `health_path` answers 200 when the server is ready. `simulated` marks endpoints that are no real device.
    `shared_cache`: a folder of the host for the kernels that engines compile; without it each attempt has its own
    and compiles anew.
    """

    name: str = Field(pattern=NAME)
    engine: str
    about: str = ""
    roles: dict[str, RoleTemplate] = Field(min_length=1)
    models: dict[str, str] = Field(min_length=1)
    libraries: dict[str, str] = Field(default_factory=dict)
    versions: StackVersions = StackVersions()
    stacks: dict[str, StackVariant] = Field(default_factory=dict)
    default_stack: str | None = None
    shared_cache: str | None = Field(default=None, pattern=r"^/")
    health_path: str = "/health"
    deadlines: Deadlines = Deadlines()
    simulated: bool = False

    @model_validator(mode="after")
    def _stacks_are_used(self) -> LaunchTemplate:
        taking = sorted(name for name, role in self.roles.items() if role.takes_stack)
        if taking and not self.stacks:
            raise ValueError(f"role {taking[0]} holds {{stack}}, but the template lists no `stacks`")
        if self.stacks and not taking:
            raise ValueError("the template lists `stacks`, but no role holds {stack}")
        if self.default_stack is not None and self.default_stack not in self.stacks:
            known = ", ".join(sorted(self.stacks)) or "none"
            raise ValueError(f"default_stack {self.default_stack!r} is none of `stacks`: {known}")
        return self

    @model_validator(mode="after")
    def _ports_have_roles(self) -> LaunchTemplate:
        for name, role in self.roles.items():
            strangers = sorted(role.named_ports - self.roles.keys())
            if strangers:
                known = ", ".join(sorted(self.roles))
                raise ValueError(f"role {name} holds {{{strangers[0]}{PORT_SUFFIX}}}, but the roles are: {known}")
        return self

    def versions_on(self, stack: str | None) -> StackVersions:
        """What is installed on one of `stacks` (None: on the default one). KeyError for a stack that is not listed."""
        name = self.default_stack if stack is None else stack
        variant = None if name is None else self.stacks[name].versions
        return self.versions if variant is None else variant.over(self.versions)


def role_ports(ports: Mapping[str, int]) -> dict[str, str]:
    """What fills `{decode_port}` and its like, from the port of each role."""
    return {f"{role}{PORT_SUFFIX}": str(port) for role, port in ports.items()}


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace each `{name}` that has a value; others stay, so that a recipe can keep `{port}` open."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text
