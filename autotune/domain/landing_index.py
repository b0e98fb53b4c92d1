"""Which knob or setting of a space lands at a place of a launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from autotune.domain.knob_text import value_of
from autotune.domain.knobs import (
    BooleanKind,
    ChoiceKind,
    Constant,
    EnvFragment,
    EnvVar,
    Flag,
    FloatKind,
    IntegerKind,
    JsonPath,
    Knob,
    KnobValue,
    Landing,
    Preload,
    StackChoice,
    Switch,
)
from autotune.domain.launch_settings import COMPOSITE_ENV, PRELOAD, STACK, Arity, Setting
from autotune.domain.space import DerivedSetting, FixedSetting, SearchSpace

# Names that many objects have: the same name elsewhere is no sign that the key was put at the wrong level.
_COMMON = frozenset({"enabled", "enable", "method", "mode", "model", "name", "type", "size", "threshold"})

_HEAVIEST = ("decode", "server")


def covers(pattern: str, key: str) -> bool:
    """Whether a key of the space's lists means this setting: it, or a part of what it names."""
    return key == pattern or key.startswith((f"{pattern}.", f"{pattern} ", f"{pattern}:"))


def keys_of(lands: Landing) -> tuple[str, ...]:
    """The keys under which `launch_settings` reports what lands there."""
    match lands:
        case EnvVar():
            return (f"env {lands.name}",)
        case EnvFragment():
            return (f"env {lands.name}:{lands.key}",)
        case Preload():
            return (PRELOAD,)
        case Flag():
            return (lands.flag,)
        case Switch():
            return tuple(word for word in (lands.on, lands.off) if word)
        case JsonPath():
            return (f"{lands.flag} {lands.path}",)
        case Constant():
            return (f"constant {lands.target}",)
        case StackChoice():
            return (STACK,)


class Landings:
    """All places of a space; `instance` is the same space on the stack at hand."""

    def __init__(self, whole: SearchSpace, instance: SearchSpace) -> None:
        self._whole = whole
        self._instance = instance
        self._knobs = [(knob, keys_of(knob.lands)) for knob in instance.knobs]
        here = instance.by_name
        self._left_out = [(knob, keys_of(knob.lands)) for knob in whole.knobs if knob.name not in here]
        self._places = [
            *((knob.role, knob.lands) for knob in whole.knobs),
            *((fixed.role, fixed.lands) for fixed in whole.fixed),
            *((derived.role, derived.lands) for derived in whole.derived),
        ]
        self.roles = frozenset(role for role, _ in self._places)

    def stand_in(self, role: str) -> str:
        """The role, or the one of the space whose settings a role has that the space does not know."""
        if role in self.roles:
            return role
        return next((known for known in _HEAVIEST if known in self.roles), min(self.roles))

    def knobs(self, role: str, setting: Setting) -> list[Knob]:
        """The knobs of the stack that may take the setting, likeliest first."""
        found = [knob for knob, keys in self._knobs if knob.role == role and setting.key in keys]
        if setting.key == PRELOAD:
            return [knob for knob in found if _library(knob, setting) is not None]
        return found

    def value(self, knob: Knob, setting: Setting) -> KnobValue:
        """The knob's value by the setting. Raises ValueError when it is none of its kind."""
        if isinstance(knob.lands, Preload):
            return _library(knob, setting)
        if isinstance(knob.lands, Switch):
            on = setting.key == knob.lands.on
            return on != (setting.negated or setting.text.lower() == "false")
        return value_of(setting, knob.type)

    def fixed(self, role: str, key: str) -> FixedSetting | None:
        return next((s for s in self._instance.fixed if s.role == role and key in keys_of(s.lands)), None)

    def derived(self, role: str, key: str) -> DerivedSetting | None:
        return next((s for s in self._instance.derived if s.role == role and key in keys_of(s.lands)), None)

    def left_out(self, role: str, key: str) -> Knob | None:
        """The knob that the stack lacks or that is never searched."""
        return next((knob for knob, keys in self._left_out if knob.role == role and key in keys), None)

    def right_place(self, role: str, key: str) -> str | None:
        """Where a key of a JSON flag belongs that stands at a place which nothing reads."""
        flag, _, path = key.partition(" ")
        if not path or not flag.startswith("-"):
            return None
        leaf = path.rpartition(".")[2]
        found: set[str] = set()
        for lands in self._landings(role):
            if not isinstance(lands, JsonPath):
                continue
            if lands.path == path or lands.path.endswith(f".{path}") or path.endswith(f".{lands.path}"):
                near = lands.path == path or path not in _COMMON
            else:
                near = lands.path.rpartition(".")[2] == leaf and lands.flag == flag
            if near and leaf not in _COMMON:
                found.add(f"{lands.flag} {lands.path}")
        return found.pop() if len(found) == 1 else None

    def arity(self, role: str) -> Arity:
        """How many values the flags take, as far as the space tells."""
        none: set[str] = set()
        one: set[str] = set()
        objects: set[str] = set()
        known: set[str] = set()
        landing: set[str] = set()
        composite = set(COMPOSITE_ENV)
        for lands in self._landings(role):
            keys = keys_of(lands)
            landing.update(keys)
            if isinstance(lands, Switch):
                none.update(keys)
            elif isinstance(lands, JsonPath):
                objects.add(lands.flag)
                known.add(lands.flag)
            elif isinstance(lands, EnvFragment):
                composite.add(lands.name)
            known.update(keys)
        for knob in self._whole.knobs:
            if isinstance(knob.lands, Flag) and knob.role == role and _takes_one(knob):
                (none if isinstance(knob.type, BooleanKind) else one).add(knob.lands.flag)
        stack = self._instance.stack
        listed = [(dead.key, dead.needs) for dead in self._whole.dead]
        listed += [(rename.old, rename.needs) for rename in self._whole.renames]
        here = [key for key, needs in listed if needs.missing(stack) is None]
        listed += [(rename.new, rename.needs) for rename in self._whole.renames]
        for key, _ in listed:
            known.add(key.split(" ", 1)[0] if key.startswith("-") else key)
            if key.startswith("env ") and ":" in key:
                composite.add(key[4:].partition(":")[0])
        flags = frozenset(key for key in known if key.startswith("-"))
        return Arity(
            none=frozenset(none),
            one=frozenset(one),
            json=frozenset(objects),
            known=flags,
            landing=frozenset(landing | objects),
            whole=frozenset(here),
            composite_env=frozenset(composite),
        )

    def _landings(self, role: str) -> Iterator[Landing]:
        return (lands for place, lands in self._places if place == role)


def _takes_one(knob: Knob) -> bool:
    if isinstance(knob.type, ChoiceKind):
        return not any(isinstance(value, tuple) for value in knob.type.values)
    return isinstance(knob.type, BooleanKind | IntegerKind | FloatKind)


def _library(knob: Knob, setting: Setting) -> KnobValue:
    """The value of the knob that names the library: `jemalloc` for `/usr/lib/libjemalloc.so.2`."""
    name = PurePosixPath(setting.words[0]).name.lower()
    values = knob.type.values if isinstance(knob.type, ChoiceKind) else ()
    return next((value for value in values if isinstance(value, str) and value.lower() in name), None)
