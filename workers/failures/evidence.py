"""The lines of a log that may tell why a server failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache

from workers.failures.signatures import Catalogue, catalogue

LONGEST_LINE = 2000  # in characters; what decides stands at the beginning of a line

# `(Worker pid=7) ERROR 11-30 10:12:22 [core.py:708] ` differs in every launch; what follows does not.
_PREFIX = re.compile(
    r"^(\([^)]{1,60}\)\s*)*([A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\]\s*|\d+\.\d\d\.\d{3}\.\d{3} [A-Z] )?"
)


class Evidence:
    """Of one or several logs, one after the other.

    `text` are the lines that may decide, `reports` all lines in the window, `before_weights` and
    `after_weights` are `text` by whether weights were being read. With `asked_to_end`, what a log says
    after the engine began to end in order is left out.
    """

    def __init__(self, logs: Iterable[str], *, asked_to_end: bool) -> None:
        self._catalogue: Catalogue = catalogue()
        self._before: list[str] = []
        self._after: list[str] = []
        self._all: list[str] = []
        for log in logs:
            self._read(list(_lines(log)), asked_to_end=asked_to_end)

    @cached_property
    def text(self) -> str:
        return "\n".join([*self._before, *self._after])

    @cached_property
    def reports(self) -> str:
        return "\n".join(self._all)

    @cached_property
    def before_weights(self) -> str:
        return "\n".join(self._before)

    @cached_property
    def after_weights(self) -> str:
        return "\n".join(self._after)

    def _read(self, lines: list[str], *, asked_to_end: bool) -> None:
        ending, weights = _compiled(self._catalogue.ending), _compiled(self._catalogue.weights)
        if asked_to_end:
            end = next((i for i, line in enumerate(lines) if ending.search(line)), None)
            lines = lines[:end]
        self._all += lines
        kept = self._before
        for index, line in enumerate(lines):
            if weights.search(line):
                kept = self._after
            if not _noise().search(line) and not self._forgiven(lines, index):
                kept.append(line)

    def _forgiven(self, lines: list[str], index: int) -> bool:
        for recovery in self._catalogue.recovered:
            if _compiled(recovery.drops).search(lines[index]):
                following = lines[index : index + recovery.lines + 1]
                return any(_compiled(recovery.after).search(line) for line in following)
        return False


def without_prefix(line: str) -> str:
    """The line without what differs in every launch: process, time, place in the source."""
    text = line.strip()
    return _PREFIX.sub("", text) or text


def _lines(log: str) -> Iterator[str]:
    return (line[:LONGEST_LINE] for line in re.split(r"[\r\n]+", log) if line.strip())


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@lru_cache(maxsize=1)
def _noise() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in catalogue().noise))
