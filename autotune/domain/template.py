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
from autotune.domain.launcher import Attach, Container, address_problem
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
    log tells of them. `stall_s`: no new line in the log while starting; an engine that says that it compiles may be
    silent. `token_stall_s`: no new token of any request under load.
    """

    ready_s: float = Field(default=600, gt=0)
    weights_s: float | None = Field(default=None, gt=0)
    capture_s: float | None = Field(default=None, gt=0)
    stall_s: float = Field(default=300, gt=0)
    token_stall_s: float | None = Field(default=None, gt=0)
    warm_up_s: float = Field(default=300, gt=0)
    load_s: float = Field(default=3600, gt=0)
    stop_s: float = Field(default=10, gt=0)

    def token_patience_s(self, request_timeout_s: float) -> float:
        """How long all requests under load may be silent.

        Without `token_stall_s` half of the time that one of them may take, since long prompts are silent for minutes
        before their first token; never less than a start may be silent.
        """
        return self.token_stall_s or max(self.stall_s, request_timeout_s / 2)


class RoleTemplate(Value):
    """How one server role is started on this host, or at which `url` it runs already.

    A role without `takes_devices` computes nothing on a device.
    """

    argv: tuple[str, ...] = ()
    url: str | None = None
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
    and compiles anew. Without `container` and `attach`, servers are processes of this host.
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
    container: Container | None = None
    attach: Attach | None = None
    health_path: str = "/health"
    deadlines: Deadlines = Deadlines()
    simulated: bool = False

    @model_validator(mode="after")
    def _stacks_are_used(self) -> LaunchTemplate:
        taking = sorted(name for name in self.roles if self.takes_stack(name))
        if taking and not self.stacks:
            raise ValueError(f"role {taking[0]} holds {{stack}}, but the template lists no `stacks`")
        if self.stacks and not taking:
            raise ValueError("the template lists `stacks`, but no role holds {stack}")
        if self.default_stack is not None and self.default_stack not in self.stacks:
            known = ", ".join(sorted(self.stacks)) or "none"
            raise ValueError(f"default_stack {self.default_stack!r} is none of `stacks`: {known}")
        return self

    @model_validator(mode="after")
    def _roles_fit_the_launcher(self) -> LaunchTemplate:
        if self.attach is not None and self.container is not None:
            raise ValueError("`attach` and `container` exclude each other: one measures what runs, one starts it")
        for name, role in self.roles.items():
            if self.attach is None and (not role.argv or role.url is not None):
                raise ValueError(f"role {name} needs `argv`; a `url` goes with `attach`")
            if self.attach is not None and (role.url is None or role.argv or role.env):
                raise ValueError(f"role {name} is attached to: it needs `url`, and neither `argv` nor `env`")
            if role.url is not None and (problem := address_problem(role.url)) is not None:
                raise ValueError(f"role {name}: url {role.url!r} {problem}")
        return self

    @model_validator(mode="after")
    def _attached_to_is_fixed(self) -> LaunchTemplate:
        if self.attach is not None:
            given = [name for name in ("libraries", "stacks", "shared_cache") if getattr(self, name)]
            if given:
                raise ValueError(f"nothing of an attached server can be chosen; remove `{given[0]}`")
            variable = self.attach.api_key_env
            if variable is not None and is_denied_env(variable):
                raise ValueError(f"api_key_env {variable!r} may not be handed to a server; use another name")
        return self

    @model_validator(mode="after")
    def _a_container_has_paths_of_its_own(self) -> LaunchTemplate:
        if self.container is None:
            return self
        for name, role in self.roles.items():
            if any("{python}" in text for text in (*role.argv, *role.env.values())):
                raise ValueError(f"role {name} holds {{python}}, the worker's own; name the container's, as python3")
        for name, path in (*self.models.items(), *self.libraries.items()):
            if path.startswith("package:"):
                raise ValueError(f"{name}: {path} lies in a package of the host; give a path of the container")
        return self

    def takes_stack(self, role: str) -> bool:
        """Whether the role is started differently on each stack."""
        return self.roles[role].takes_stack or (self.container is not None and "{stack}" in self.container.image)

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
