"""What a parser makes of a log, before it is compared with a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from autotune.domain.effective import Corrected, Ignored
from autotune.domain.knobs import KnobValue
from workers.effective.asked import PRELOAD

LONGEST_LINE = 20_000  # in characters: vLLM prints its whole configuration in one line
LONGEST_EVIDENCE = 500

# `(Worker pid=7) INFO 11-30 10:12:22 [core.py:708] ` differs in every launch; what follows does not.
_PREFIX = re.compile(
    r"^(\([^)]{1,60}\)\s*)*([A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s*|\d+\.\d\d\.\d{3}\.\d{3} [A-Z] )?"
)
_PRELOAD = re.compile(r"object '([^']+)' from LD_PRELOAD cannot be preloaded")


class Fact(NamedTuple):
    """A value that the server prints, and the words in which it does."""

    value: KnobValue
    line: str


class Reading(NamedTuple):
    """Facts by setting, and the lines that say outright that something was ignored or corrected.

    `speaks` is False for a log without the lines that every start has: then a missing line proves nothing.
    """

    facts: dict[str, Fact]
    ignored: tuple[Ignored, ...] = ()
    corrected: tuple[Corrected, ...] = ()
    speaks: bool = True


def log_lines(text: str) -> Iterator[str]:
    """Lines without their logger's prefix, cut to a length that is safe to search."""
    for line in re.split(r"[\r\n]+", text):
        if line.strip():
            cut = line[:LONGEST_LINE].strip()
            yield _PREFIX.sub("", cut) or cut


def evidence(line: str) -> str:
    return line[:LONGEST_EVIDENCE]


def preload_failures(text: str) -> dict[str, str]:
    """Libraries that the dynamic linker left out, by path, with its words. The same on every engine."""
    found: dict[str, str] = {}
    for line in log_lines(text):
        if "LD_PRELOAD" in line and (match := _PRELOAD.search(line)):
            found.setdefault(match[1], evidence(line))
    return found


def preload_ignored(text: str, libraries: dict[str, str]) -> tuple[Ignored, ...]:
    """The plan's own `libraries` (name to path) that were left out."""
    failed = preload_failures(text)
    return tuple(Ignored(setting=PRELOAD, line=failed[path]) for path in libraries.values() if path in failed)
