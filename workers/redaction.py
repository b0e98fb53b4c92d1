"""Keep secret values out of logs, outcomes and exports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

MASK = "***"
SHORTEST = 6  # replacing shorter values would mangle every other word of a log, and they guard nothing

_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)
_SECRET_FLAG = re.compile(r"^--?(?:[\w-]*[-_])?(?:token|key|secret|password)$", re.IGNORECASE)
# `..._DISPATCH_TOKENS_PER_RANK=256` is a setting: a number or a switch guards nothing.
_PLAIN_SETTING = re.compile(r"[\d.,:-]{1,12}|true|false|on|off|auto", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Whether the value of this environment variable must not be shown."""
    return bool(value) and _SECRET_NAME.search(name) is not None and not _PLAIN_SETTING.fullmatch(value)


def secret_values(environments: Iterable[Mapping[str, str]], commands: Iterable[Sequence[str]] = ()) -> tuple[str, ...]:
    """Every secret of these environments and argument lists, longest first."""
    found = {value for env in environments for name, value in env.items() if is_secret(name, value)}
    for argv in commands:
        found.update(value for flag, value in pairwise(argv) if _SECRET_FLAG.match(flag))
        found.update(w.split("=", 1)[1] for w in argv if "=" in w and _SECRET_FLAG.match(w.split("=", 1)[0]))
    return tuple(sorted((v for v in found if len(v) >= SHORTEST), key=lambda v: (-len(v), v)))


def redact(text: str, secrets: Sequence[str]) -> str:
    """The text with every secret replaced by `***`."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def redact_environment(env: Mapping[str, str], secrets: Sequence[str]) -> dict[str, str]:
    """The names, and the values that may be shown."""
    return {name: MASK if is_secret(name, value) else redact(value, secrets) for name, value in env.items()}
