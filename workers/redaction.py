"""Keep secret values out of logs, outcomes and exports: by value where we know it, by its name where a log tells it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

MASK = "***"
SHORTEST = 6  # replacing shorter values would mangle every other word of a log, and they guard nothing

_SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SECRET_FLAG = re.compile(r"^--?(?:[\w-]*[-_])?(?:token|key|secret|password)$", re.IGNORECASE)
# `..._DISPATCH_TOKENS_PER_RANK=256` is a setting: a number or a switch guards nothing.
_PLAIN_SETTING = re.compile(r"[\d.,:-]{1,12}|true|false|on|off|auto", re.IGNORECASE)

# What a log tells without our knowing the value: a server prints what it read from a file of its own. Sixteen
# characters with a digit among them: `eos_token='<|im_end|>'` and `max_tokens=8192` are settings.
_TOLD = re.compile(
    rb"""(?ix)
    (?P<name> (?: (?: api|access)[_-]?key | secret | passw(?:or)?d | [_-]token | authorization )
        ["']? \s? [=:] \s? ["']? (?: (?: bearer | basic ) \s )?
      | bearer \s | :// [^\s/:@]{1,64} : (?= [^\s/@]+ @ ) )
    (?P<value> (?<= [/\w] : ) [^\s/@]+ (?= @ ) | (?= [a-z_./+=-]{0,64} \d ) [\w./+=-]{16,} )
  | (?P<shape> \b (?: hf_ | sk- | ghp_ ) [A-Za-z0-9_-]{16,} )
    """
)
# Few lines hold one of these. Each costs half a second in a GB of log, the pattern a hundred times as much.
_HINTS = (b"@", b"key", b"token", b"secret", b"passw", b"bearer", b"hf_", b"sk-", b"ghp_")
# Of those lines, most hold none of these.
_CLOSER_HINTS = (
    *(b"api_key", b"api-key", b"apikey", b"access_key", b"access-key", b"accesskey", b"_token", b"-token"),
    *(b"@", b"secret", b"passw", b"bearer", b"hf_", b"sk-", b"ghp_"),
)


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


def redact_told(text: bytes) -> bytes:
    """Whole lines of a log, with `***` for what they name a key, a password or a bearer's token."""
    if not _holds(text, _HINTS):
        return text
    lines = text.splitlines(keepends=True)
    return b"".join(_TOLD.sub(_masked, line) if _holds(line, _CLOSER_HINTS) else line for line in lines)


def _holds(text: bytes, words: Iterable[bytes]) -> bool:
    lower = text.lower()
    return any(word in lower for word in words)


def redact_environment(env: Mapping[str, str], secrets: Sequence[str]) -> dict[str, str]:
    """The names, and the values that may be shown."""
    return {name: MASK if is_secret(name, value) else redact(value, secrets) for name, value in env.items()}


def _masked(match: re.Match[bytes]) -> bytes:
    return (match["name"] or b"") + MASK.encode()
