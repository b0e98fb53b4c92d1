"""Env and argv of one role as single settings, in one spelling, whatever form they were written in.

A setting's key is `env NAME`, `env NAME:fragment`, `--flag`, `--flag dotted.path`, `preload`,
`constant module:NAME` or `stack`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from autotune.domain.engine_spellings import TEMPLATE_FLAGS, WHOLE_FLAGS, spellings_of
from autotune.domain.launch_plan import RolePlan
from autotune.domain.parsed_launch import FindingSeverity

PRELOAD = "preload"
STACK = "stack"
MODEL = "model"
COMPOSITE_ENV = frozenset({"PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})

_FLAG = re.compile(r"--[A-Za-z]|-[A-Za-z]")
_PYTHON = re.compile(r"(python|pypy)[\d.]*|\{python\}")
_LEVEL = re.compile(r"-O(\d+)")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `words` are its arguments as text; `content` is the typed value where `typed`.

    `negated`: the flag was written `--no-...` and no such flag is known.
    """

    key: str
    words: tuple[str, ...] = ()
    content: Any = None
    typed: bool = False
    negated: bool = False

    @property
    def text(self) -> str:
        """The value for a person to read."""
        if not self.typed:
            return "false" if self.negated else " ".join(self.words)
        return self.content if isinstance(self.content, str) else json.dumps(self.content, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Arity:
    """What is known of flags: those that take no value, one value, or JSON; and all of them.

    Of several spellings, one of `landing` is the right one. `whole` are keys that are meant with everything
    inside them.
    """

    none: frozenset[str] = frozenset()
    one: frozenset[str] = frozenset()
    json: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    landing: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    composite_env: frozenset[str] = COMPOSITE_ENV


@dataclass(slots=True)
class Reading:
    """Settings in order, and what was noticed on the way: rule, severity, message."""

    settings: list[Setting] = field(default_factory=list)
    notices: list[tuple[str, FindingSeverity, str]] = field(default_factory=list)


def settings_of(plan: RolePlan, arity: Arity) -> Reading:
    """Every setting of the role's env, argv, libraries and constants."""
    reading = Reading()
    for name, text in plan.env.items():
        reading.settings += _env_settings(name, text, arity)
    reading.settings += [Setting(PRELOAD, (name,)) for name in plan.preload]
    reading.settings += [
        Setting(f"constant {target}", content=value, typed=True) for target, value in plan.constants.items()
    ]
    if plan.stack is not None:
        reading.settings.append(Setting(STACK, (plan.stack,)))
    _Arguments(plan.argv, arity, reading).read()
    return reading


def inner_settings(setting: Setting, arity: Arity) -> Iterator[Setting]:
    """The settings inside one that holds a JSON object."""
    flag, _, path = setting.key.partition(" ")
    return _leaves(flag, path, setting.content, arity.whole)


def _env_settings(name: str, text: str, arity: Arity) -> Iterator[Setting]:
    text = text.strip()  # blanks at the end come from copying, and no engine means them
    if not text:
        return
    if name == "LD_PRELOAD":
        for path in re.split(r"[:\s]+", text):
            if path and not re.fullmatch(r"\$\{?LD_PRELOAD(:-)?\}?", path):
                yield Setting(PRELOAD, (path,))
    elif name in arity.composite_env:
        parts: list[str] = []
        for part in re.split(r",(?![^\[]*\])", text):
            if parts and ":" not in part:
                parts[-1] += f",{part}"
            else:
                parts.append(part)
        for part in parts:
            key, _, value = part.partition(":")
            if key.strip():
                yield Setting(f"env {name}:{key.strip()}", (value.strip(),))
    else:
        yield Setting(f"env {name}", (text,))


class _Arguments:
    def __init__(self, argv: Collection[str], arity: Arity, reading: Reading) -> None:
        self._argv = list(argv)
        self._arity = arity
        self._reading = reading
        self._flags: dict[str, Setting] = {}
        self._objects: dict[str, dict[str, Any]] = {}
        self._full: dict[str, str] = {}

    def read(self) -> None:
        at = self._behind_the_program()
        positional: list[str] = []
        while at < len(self._argv):
            word = self._argv[at]
            at += 1
            if not _FLAG.match(word):
                positional.append(word)
                continue
            name, equals, text = word.partition("=")
            values = [text] if equals else []
            flag, path, negated = self._resolved(name)
            most = self._most(flag)
            while not equals and at < len(self._argv) and len(values) < most and not _FLAG.match(self._argv[at]):
                if most == 1 and flag in self._arity.none and self._argv[at].lower() not in ("true", "false"):
                    break
                values.append(self._argv[at])
                at += 1
            self._take(flag, path, values, negated)
        if positional:
            self._reading.settings.append(Setting(MODEL, (positional[0],)))
        self._reading.settings += [Setting("argument", (word,)) for word in positional[1:]]
        for setting in self._flags.values():
            self._reading.settings.append(setting)
        for flag, content in self._objects.items():
            self._reading.settings += _leaves(flag, "", content, self._arity.whole)

    def _behind_the_program(self) -> int:
        argv = self._argv
        if not argv or _FLAG.match(argv[0]):
            return 0
        at = 1
        if _PYTHON.fullmatch(PurePosixPath(argv[0]).name):
            while at < len(argv) and argv[at].startswith("-") and argv[at] != "-m":
                at += 2 if argv[at] in ("-X", "-W") else 1
            at += 2 if at < len(argv) and argv[at] == "-m" else 1
        if at < len(argv) and argv[at] == "serve":
            at += 1
        return at

    def _most(self, flag: str) -> int:
        """How many values the flag takes at most."""
        if flag in self._arity.none or flag in self._arity.one:
            return 1
        return 1_000

    def _resolved(self, name: str) -> tuple[str, str, bool]:
        """The flag in its one spelling, the dotted path behind it, and whether it was negated."""
        if level := _LEVEL.fullmatch(name):
            self._argv.insert(self._argv.index(name) + 1, level[1])
            return "--optimization-level", "", False
        head, _, path = name.partition(".")
        if path and head == "-O":
            return self._known("--compilation-config"), path, False
        known = self._arity.known
        if name in known:
            return name, "", False
        dashed = head.replace("_", "-") if head.startswith("--") else head
        for flag in dict.fromkeys((head, dashed)):
            found = self._known(flag)
            if found in known:
                return found, path, False
        positive = dashed.replace("--no-", "--", 1)
        if positive != dashed and dashed not in TEMPLATE_FLAGS and (found := self._known(positive)) in known:
            return found, path, True
        return self._shortened(dashed), path, False

    def _known(self, flag: str) -> str:
        spellings = spellings_of(flag)
        for names in (self._arity.landing, self._arity.known):
            if found := [name for name in spellings if name in names]:
                return found[0]
        return flag

    def _shortened(self, flag: str) -> str:
        """The one known flag that this begins, as argparse takes it; else the flag itself."""
        whole = TEMPLATE_FLAGS | WHOLE_FLAGS
        if flag in whole or len(spellings_of(flag)) > 1 or len(flag) < 4 or not flag.startswith("--"):
            return flag
        begun = {self._known(name) for name in self._arity.known | whole if name.startswith(flag) and " " not in name}
        if len(begun) != 1:
            return flag
        (found,) = begun
        self._reading.notices.append(("shortened-flag", "note", f"{flag} is read as {found}"))
        return found

    def _take(self, flag: str, path: str, values: list[str], negated: bool) -> None:
        text = " ".join(values).strip()
        if flag == "-O":
            flag = self._known("--compilation-config") if text.startswith("{") else "--optimization-level"
        if path:
            content = self._objects.setdefault(flag, {})
            _put(content, path, _typed(text))
        elif text.startswith("{") or (flag in self._arity.json and text and not text.lstrip("-").isdigit()):
            self._take_json(flag, text)
        else:
            if flag in self._flags and self._flags[flag].words != tuple(values):
                self._notice_repetition(flag)
            self._flags[flag] = Setting(flag, tuple(v.strip() for v in values), negated=negated)

    def _take_json(self, flag: str, text: str) -> None:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            if "$" in text:
                why = f"the JSON of {flag} holds what only the shell knows, and is not read: {text}"
                self._reading.notices.append(("unresolved", "warn", why))
            else:
                self._reading.notices.append(("not-json", "refuse", f"{flag} takes JSON, and this is none: {error}"))
            return
        if not isinstance(content, dict):
            self._flags[flag] = Setting(flag, (text,))
            return
        if self._full.get(flag, text) != text:
            self._notice_repetition(flag)
        self._full[flag] = text
        self._objects[flag] = content

    def _notice_repetition(self, flag: str) -> None:
        self._reading.notices.append(("repeated-flag", "note", f"{flag} is given more than once; the last one counts"))


def _put(content: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for key in outer:
        inner = content.setdefault(key, {})
        if not isinstance(inner, dict):
            inner = content[key] = {}
        content = inner
    if last.endswith("+"):
        present = content.get(last[:-1], [])
        content[last[:-1]] = [*(present if isinstance(present, list) else [present]), value]
    else:
        content[last] = value


def _typed(text: str) -> Any:
    """The value of `--flag.key text`: JSON where it is JSON, else text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _leaves(flag: str, path: str, content: Mapping[str, Any], whole: Collection[str]) -> Iterator[Setting]:
    for name, value in content.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict) and value and f"{flag} {here}" not in whole:
            yield from _leaves(flag, here, value, whole)
        else:
            yield Setting(f"{flag} {here}", content=value, typed=True)
