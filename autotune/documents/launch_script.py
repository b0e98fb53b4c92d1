"""Launches that somebody runs: a bash script, or YAML of env and argv, as one plan for each role."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from autotune.documents.bash_launches import Launches, read_script
from autotune.documents.yaml_text import Document, dotted, read_document
from autotune.domain.knobs import SERVER
from autotune.domain.launch_plan import RolePlan
from autotune.errors import InvalidRequest, Problem

YAML_SUFFIXES = frozenset({".yaml", ".yml", ".json"})


def read_launches(text: str, file: str) -> Launches:
    """The launches of a script, or of YAML `{roles: {NAME: {env, argv}}}` or `{env, argv}`, told by its suffix.

    Raises InvalidRequest when the file launches nothing or is no such YAML.
    """
    if PurePosixPath(file).suffix.lower() in YAML_SUFFIXES:
        return _from_yaml(read_document(text, file))
    launches = read_script(text)
    if not launches.roles:
        problem = Problem(
            key="file",
            message="no command in it starts a server",
            mend="give the script that holds `vllm serve` or `sglang.launch_server`, or YAML of env and argv",
            file=file,
        )
        notes = [Problem(key=finding.rule, message=finding.message, file=file) for finding in launches.findings]
        raise InvalidRequest(f"{file} launches nothing", [problem, *notes])
    return launches


# --- YAML -----------------------------------------------------------------------------------


def _from_yaml(document: Document) -> Launches:
    data = document.data
    problems: list[Problem] = []
    given = data.get("roles") if isinstance(data, dict) and "roles" in data else {SERVER: data}
    if not isinstance(given, dict) or not given or (isinstance(data, dict) and "roles" in data and len(data) > 1):
        given = {}
        problems.append(_problem(document, (), "must be `roles: {NAME: {env, argv}}` or `{env, argv}`"))
    roles: dict[str, RolePlan] = {}
    for name, content in given.items():
        where: tuple[str, ...] = ("roles", name) if "roles" in data else ()
        roles[name] = _role_of_yaml(document, where, content, problems)
    if problems:
        raise InvalidRequest(f"{document.file or 'the text'} is no launch", problems)
    return Launches(roles=roles, lines={name: document.line_of(("roles", name)) or 1 for name in roles})


def _role_of_yaml(document: Document, where: tuple[str, ...], content: Any, problems: list[Problem]) -> RolePlan:
    allowed = ("env", "argv", "preload", "constants", "stack")
    if not isinstance(content, dict) or not content or not content.keys() <= set(allowed):
        problems.append(_problem(document, where, "must be a mapping of env and argv", allowed))
        return RolePlan()
    env, argv = content.get("env") or {}, content.get("argv") or []
    if isinstance(argv, str):
        try:
            argv = shlex.split(argv)
        except ValueError as error:
            problems.append(_problem(document, (*where, "argv"), f"can't be split into words: {error}"))
            argv = []
    if not isinstance(argv, list) or not all(_is_scalar(word) for word in argv):
        problems.append(_problem(document, (*where, "argv"), "must be a list of words, or one text"))
        argv = []
    if not isinstance(env, dict) or not all(_is_scalar(value) for value in env.values()):
        problems.append(_problem(document, (*where, "env"), "must be a mapping of names to text or numbers"))
        env = {}
    try:
        return RolePlan(
            env={name: _text(value) for name, value in env.items()},
            argv=tuple(_text(word) for word in argv),
            preload=tuple(content.get("preload") or ()),
            constants=content.get("constants") or {},
            stack=content.get("stack"),
        )
    except ValueError:
        problems.append(_problem(document, where, "preload must be a list, constants a mapping, stack a name"))
        return RolePlan()


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _problem(document: Document, path: Sequence[str], message: str, allowed: tuple[str, ...] = ()) -> Problem:
    line = document.line_of(path)
    return Problem(dotted(path) or "file", message, allowed=allowed, line=line, file=document.file)
