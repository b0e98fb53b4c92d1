"""The launches of a bash script.

It is read as text, line after line; nothing in it is ever run. Branches are all read, each from the state
before its `if` or `case`; what cannot be understood is a finding with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath

from autotune.documents.shell_text import Command, Word, as_text, commands_of, expanded
from autotune.domain.knobs import SERVER
from autotune.domain.launch_parse import Finding
from autotune.domain.launch_plan import RolePlan
from autotune.domain.value import Value

PREFILL, DECODE, ROUTER = "prefill", "decode", "router"

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_ENDS = {"fi": "if", "esac": "case", "}": "function"}
_KEYWORDS = frozenset(
    {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "case", "function", "done", *_ENDS}
)
_PINNING = frozenset({"numactl", "taskset"})
_PYTHON = re.compile(r"python[\d.]*")
_ENGINE_MODULE = re.compile(r"(vllm|sglang)\b(?!.*bench)|(\w+\.)*\w*(server|serve|simulator)$")
_ROUTER = re.compile(r"sglang_router|sglang-router|vllm-router|mini_lb|\w*(proxy|load_balanc)\w*\.py")
_KV_ROLE = re.compile(r"kv_role[\"']?\s*[:=\s]\s*[\"']?(kv_\w+)")
_DISAGGREGATION = re.compile(r"--disaggregation[-_]mode[=\s](prefill|decode)\b")
_LAUNCH_LIKE = re.compile(r"\b(vllm serve|sglang serve|launch_server|vllm\.entrypoints)\b")
# Options of the words before a program that take a value of their own.
_TAKES_VALUE = {
    "numactl": frozenset({"-C", "-N", "-m", "-p", "-i", "-l"}),
    "env": frozenset({"-u", "-C", "-S"}),
    "nice": frozenset({"-n"}),
    "sudo": frozenset({"-u", "-g"}),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "timeout": frozenset({"-k", "-s"}),
    "ionice": frozenset({"-c", "-n"}),
}
_OPERANDS = {"taskset": 1, "timeout": 1}
_PREFIXES = frozenset(
    {"exec", "nohup", "setsid", "command", "env", "nice", "sudo", "stdbuf", "timeout", "ionice", *_PINNING}
)


class Launches(Value):
    """What a file launches, by role; `lines` says where each role's command begins."""

    roles: dict[str, RolePlan]
    lines: dict[str, int] = {}
    findings: tuple[Finding, ...] = ()


def read_script(text: str) -> Launches:
    """The launches of a bash script; without any role when there is none."""
    script = _Script()
    script.read(text)
    return Launches(roles=script.roles, lines=script.lines, findings=tuple(script.findings))


@dataclass
class _State:
    """Variables of the script; those in `exported` are the environment of what it starts."""

    variables: dict[str, str | list[str]] = field(default_factory=dict)
    exported: dict[str, None] = field(default_factory=dict)
    export_all: bool = False

    def copy(self) -> _State:
        return _State(dict(self.variables), dict(self.exported), self.export_all)

    def env(self) -> dict[str, str]:
        return {name: text for name in self.exported if isinstance(text := self.variables.get(name), str)}


@dataclass
class _Scope:
    """A construct whose branches start from one state. A branch that launches or exits leaves nothing behind."""

    kind: str
    before: _State
    kept: list[_State] = field(default_factory=list)
    left: bool = False


class _Script:
    def __init__(self, depth: int = 0) -> None:
        self.roles: dict[str, RolePlan] = {}
        self.lines: dict[str, int] = {}
        self.findings: list[Finding] = []
        self._state = _State()
        self._scopes: list[_Scope] = []
        self._depth = depth

    def read(self, text: str) -> None:
        commands, oddities = commands_of(text)
        for oddity in oddities:
            self._find("not-understood", oddity.line, oddity.message)
        after_name = False  # `name` `(` `)` begins a function
        for command in commands:
            if command.ended_by == "(" and len(command.words) == 1 and not after_name:
                after_name = True
                continue
            if after_name and command.ended_by == ")" and not command.words:
                after_name = False
                self._enter("function")
                continue
            after_name = False
            self._structure(command)
            if command.ended_by == "(":
                self._enter("(")
            elif command.ended_by == ")" and self._scopes and self._scopes[-1].kind == "(":
                self._leave()

    def _find(self, rule: str, line: int, message: str) -> None:
        self.findings.append(Finding(rule=rule, severity="warn", message=f"line {line}: {message}"))

    # --- branches ---------------------------------------------------------------------------

    def _enter(self, kind: str) -> None:
        self._scopes.append(_Scope(kind, self._state.copy()))

    def _branch_ends(self) -> None:
        scope = self._scopes[-1]
        if not scope.left:
            scope.kept.append(self._state)
        scope.left = False
        self._state = scope.before.copy()

    def _leave(self) -> None:
        self._branch_ends()
        scope = self._scopes.pop()
        if scope.kind == "(":
            return
        for kept in scope.kept:
            self._state.variables.update(kept.variables)
            self._state.exported.update(kept.exported)

    def _structure(self, command: Command) -> None:
        words = list(command.words)
        while words and (word := words[0].plain) in _KEYWORDS:
            words.pop(0)
            if word in ("if", "case", "function"):
                self._enter(word)
                if word != "if":
                    words = words if word == "case" and "in" not in [w.plain for w in words] else []
            elif word in ("elif", "else") and self._in("if"):
                self._branch_ends()
            elif word in _ENDS and self._in(_ENDS[word]):
                self._leave()
        if words and words[0].plain in ("exit", "return") and self._scopes:
            self._scopes[-1].left = True
        elif words and not (self._in("case") and command.ended_by == ")"):
            self._command(words, command.line)
        if command.ended_by == ";;" and self._in("case"):
            self._branch_ends()

    def _in(self, kind: str) -> bool:
        return bool(self._scopes) and self._scopes[-1].kind == kind

    # --- commands ---------------------------------------------------------------------------

    def _command(self, words: list[Word], line: int) -> None:
        inline: dict[str, str] = {}
        while words and (found := _ASSIGNMENT.match(words[0].plain)):
            word = words.pop(0)
            self._assign(word, found, inline if words or inline else None)
        if not words:
            for name, text in inline.items():
                self._set(name, text)
            return
        name = words[0].plain
        if name in ("export", "declare", "typeset", "readonly", "local"):
            self._declare(name, words[1:])
        elif name == "set":
            flags = [word.plain for word in words[1:]]
            self._state.export_all = self._state.export_all or "-a" in flags or "allexport" in flags
        elif name == "unset":
            for word in words[1:]:
                self._state.variables.pop(word.plain, None)
                self._state.exported.pop(word.plain, None)
        elif name.startswith("--"):
            text = f"{name} stands alone: no backslash joins it to the command above, so no server gets it"
            self._find("not-understood", line, text)
        else:
            self._run([part for word in words for part in expanded(word, self._state.variables)], inline, line)

    def _assign(self, word: Word, found: re.Match[str], inline: dict[str, str] | None) -> None:
        name, adds = found[1], found[2]
        before = self._state.variables.get(name)
        if word.items is not None:
            items = [part for item in word.items for part in expanded(item, self._state.variables)]
            self._state.variables[name] = [*before, *items] if adds and isinstance(before, list) else items
            return
        text = as_text(word, self._state.variables)[found.end() :]
        if adds and isinstance(before, str):
            text = before + text
        if inline is None:
            self._set(name, text)
        else:
            inline[name] = text

    def _set(self, name: str, text: str) -> None:
        self._state.variables[name] = text
        if self._state.export_all:
            self._state.exported[name] = None

    def _declare(self, command: str, words: Sequence[Word]) -> None:
        exports = command == "export"
        for word in words:
            if word.plain.startswith("-") and not _ASSIGNMENT.match(word.plain):
                exports = (exports or "x" in word.plain) and "n" not in word.plain
                continue
            found = _ASSIGNMENT.match(word.plain)
            name = found[1] if found else word.plain
            if found:
                self._assign(word, found, None)
            if exports:
                self._state.exported[name] = None

    def _run(self, argv: list[str], inline: dict[str, str], line: int) -> None:
        env = {**self._state.env(), **inline}
        pinned: list[str] = []
        argv = list(self._without_prefixes(argv, env, pinned))
        if not argv:
            return
        program = PurePosixPath(argv[0]).name
        if program in ("bash", "sh") and "-c" in argv[1:] and argv.index("-c") + 1 < len(argv) and self._depth < 2:
            self._inner_script(argv[argv.index("-c") + 1], env, line)
        elif _is_launch(program, argv):
            if pinned:
                self._find("prefix-dropped", line, f"`{' '.join(pinned)}` binds the server's cores or memory; left out")
            self._launch(argv, env, line)
        elif program not in ("echo", "printf", "cat", "grep", "pkill") and _LAUNCH_LIKE.search(" ".join(argv[1:])):
            self._find("not-understood", line, f"a launch inside `{program}` is not read; give that command as a file")

    def _without_prefixes(self, argv: list[str], env: dict[str, str], pinned: list[str]) -> Iterator[str]:
        at = 0
        while at < len(argv) and (name := PurePosixPath(argv[at]).name) in _PREFIXES:
            start = at
            at += 1
            operands = _OPERANDS.get(name, 0)
            while at < len(argv):
                word = argv[at]
                if word.startswith("-"):
                    if name == "env" and word in ("-i", "-", "--ignore-environment"):
                        env.clear()
                    if name == "env" and word == "-u" and at + 1 < len(argv):
                        env.pop(argv[at + 1], None)
                    at += 2 if word in _TAKES_VALUE.get(name, ()) else 1
                elif name == "env" and (found := _ASSIGNMENT.match(word)):
                    env[found[1]] = word[found.end() :]
                    at += 1
                elif operands:
                    operands -= 1
                    at += 1
                else:
                    break
            if name in _PINNING:
                pinned += argv[start:at]
        yield from argv[at:]

    def _inner_script(self, text: str, env: dict[str, str], line: int) -> None:
        inner = _Script(self._depth + 1)
        inner._state.variables.update(env)
        inner._state.exported.update(dict.fromkeys(env))
        inner.read(text)
        for finding in inner.findings:
            self.findings.append(finding.model_copy(update={"message": f"line {line}, inside -c: {finding.message}"}))
        for role, plan in inner.roles.items():
            self._add(role, plan, line)

    def _launch(self, argv: list[str], env: dict[str, str], line: int) -> None:
        loose = [word for word in argv if re.fullmatch(r"\$(@|\*|\{\w+(\[[@*]\])?\}|\w+)", word)]
        values = {word for before, word in pairwise(argv) if before.startswith("-")}
        for word in loose:
            if word in ("$@", "$*") or word not in values:
                argv = [w for w in argv if w != word]
                self._find("unresolved", line, f"{word} holds arguments that only the shell knows; left out")
        self._add(_role_of(argv), RolePlan(env=env, argv=tuple(argv)), line)

    def _add(self, role: str, plan: RolePlan, line: int) -> None:
        for scope in self._scopes:
            scope.left = True
        if role not in self.roles:
            self.roles[role] = plan
            self.lines[role] = line
        elif self.roles[role] != plan:
            text = f"another launch of role {role}; only the one of line {self.lines[role]} is read"
            self._find("several-launches", line, text)


def _is_launch(program: str, argv: Sequence[str]) -> bool:
    if program in ("vllm", "sglang"):
        return len(argv) > 1 and argv[1] == "serve"
    if program in ("llama-server", "sglang-router", "vllm-router"):
        return True
    if not _PYTHON.fullmatch(program):
        return False
    if "-m" in argv[1:-1]:
        module = argv[argv.index("-m") + 1]
        return bool(_ENGINE_MODULE.match(module) or _ROUTER.match(module)) and "bench" not in module
    script = next((PurePosixPath(word).name for word in argv[1:] if not word.startswith("-")), "")
    return bool(re.search(r"(server|serve|launch\w*)\.py$", script) or _ROUTER.search(script))


def _role_of(argv: Sequence[str]) -> str:
    text = " ".join(argv)
    if _ROUTER.search(" ".join(argv[:4])):
        return ROUTER
    if found := _DISAGGREGATION.search(text):
        return found[1]
    found = _KV_ROLE.search(text)
    return {"kv_producer": PREFILL, "kv_consumer": DECODE}.get(found[1], SERVER) if found else SERVER
