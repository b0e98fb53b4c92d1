"""From candidate to env and argv: the only place where knobs become text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from autotune.domain.candidate import Candidate
from autotune.domain.knobs import (
    SERVER,
    Constant,
    EnvFragment,
    EnvVar,
    Flag,
    JsonPath,
    KnobValue,
    Landing,
    Preload,
    StackChoice,
    Switch,
)
from autotune.domain.space import SearchSpace
from autotune.domain.value import Value
from autotune.errors import InvalidSpace


class RolePlan(Value):
    """What one server role is started with, on top of the host's launch template.

    `preload` names libraries of the template; the host turns them into paths for `LD_PRELOAD`. `constants`
    maps `package.module:NAME` to the value that the module is given. `stack` names one of the template's.
    `proofs` maps a setting, named by `place_of`, to the regular expression that a line of the server's log
    matches once the setting is in effect.
    """

    env: dict[str, str] = Field(default_factory=dict)
    argv: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    constants: dict[str, KnobValue] = Field(default_factory=dict)
    stack: str | None = None
    proofs: dict[str, str] = Field(default_factory=dict)


class LaunchPlan(Value):
    """Same space, candidate and facts give the same plan, down to the order of arguments."""

    roles: dict[str, RolePlan]


def render(space: SearchSpace, candidate: Candidate, facts: Mapping[str, Any]) -> LaunchPlan:
    """The plan of a settled candidate. Raises InvalidSpace when two settings claim one place."""
    settings = list(_settings(space, candidate, facts))
    roles = dict.fromkeys(role for role, _, _ in settings) or {SERVER: None}
    proofs = _proofs(space, candidate)
    return LaunchPlan(
        roles={
            r: _role_plan([(la, v) for ro, la, v in settings if ro == r], {p: x for ro, p, x in proofs if ro == r})
            for r in roles
        }
    )


def _proofs(space: SearchSpace, candidate: Candidate) -> list[tuple[str, str, str]]:
    """Of the knobs that are set; a switch that is off has nothing to show."""
    return [
        (knob.role, place_of(knob.lands), knob.proof)
        for knob in space.knobs
        if knob.proof is not None and candidate.values.get(knob.name) not in (None, False)
    ]


def _settings(
    space: SearchSpace, candidate: Candidate, facts: Mapping[str, Any]
) -> Iterator[tuple[str, Landing, KnobValue]]:
    for fixed in space.fixed:
        yield fixed.role, fixed.lands, fixed.value
    for derived, value in space.derived_values(candidate, facts):
        yield derived.role, derived.lands, value
    for knob in space.knobs:
        yield knob.role, knob.lands, candidate.values.get(knob.name)


def _role_plan(settings: list[tuple[Landing, KnobValue]], proofs: dict[str, str]) -> RolePlan:
    env: dict[str, str] = {}
    fragments: dict[str, dict[str, str]] = {}
    argv: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    preload: list[str] = []
    constants: dict[str, KnobValue] = {}
    stack: str | None = None
    taken: set[str] = set()
    for lands, value in settings:
        if value is None:
            continue
        place = place_of(lands)
        if place in taken:
            raise InvalidSpace(f"two settings of the space claim {place}")
        taken.add(place)
        match lands:
            case EnvVar():
                env[lands.name] = _env_text(value)
            case EnvFragment():
                fragments.setdefault(lands.name, {})[lands.key] = _word(value)
            case Preload():
                preload.append(str(value))
            case Flag():
                argv += [lands.flag, *_words(value)]
            case Switch():
                argv += [word] if (word := lands.on if value else lands.off) else []
            case Constant():
                constants[lands.target] = value
            case StackChoice():
                stack = str(value)
            case JsonPath():
                _put(objects.setdefault(lands.flag, {}), lands.path.split("."), value)
    for name, parts in fragments.items():
        env[name] = ",".join(f"{key}:{text}" for key, text in parts.items())
    for flag, content in objects.items():
        argv += [flag, json.dumps(content, sort_keys=True, separators=(",", ":"))]
    return RolePlan(env=env, argv=tuple(argv), preload=tuple(preload), constants=constants, stack=stack, proofs=proofs)


def place_of(lands: Landing) -> str:
    """The name of a setting: `env NAME`, `env NAME:fragment`, `--flag`, `--flag dotted.path`, `LD_PRELOAD`."""
    match lands:
        case EnvVar():
            return f"env {lands.name}"
        case EnvFragment():
            return f"env {lands.name}:{lands.key}"
        case Preload():
            return "LD_PRELOAD"
        case Flag():
            return lands.flag
        case Switch():
            return f"{lands.on} {lands.off}".strip()
        case JsonPath():
            return f"{lands.flag} {lands.path}"
        case Constant():
            return f"constant {lands.target}"
        case StackChoice():
            return "the stack"


def _put(content: dict[str, Any], path: list[str], value: KnobValue) -> None:
    for key in path[:-1]:
        content = content.setdefault(key, {})
    content[path[-1]] = list(value) if isinstance(value, tuple) else value


def _env_text(value: KnobValue) -> str:
    """An env variable's switch is 1 or 0, as vLLM, CANN and HCCL read them."""
    return str(int(value)) if isinstance(value, bool) else _word(value)


def _word(value: KnobValue) -> str:
    """torch_npu's allocator wants True and False, case-sensitive: Python's own spelling."""
    return ",".join(map(_word, value)) if isinstance(value, tuple) else str(value)


def _words(value: KnobValue) -> list[str]:
    if isinstance(value, tuple):
        return [_word(item) for item in value]
    return [str(value).lower() if isinstance(value, bool) else _word(value)]
