"""How far a starting server has come, and which version of its engine it is, by its own log."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from autotune.domain.learned_limits import CAPTURE, COMPILE, WEIGHTS
from autotune.domain.template import Deadlines
from autotune.domain.value import Value

MOST_BYTES = 128 * 1024  # read at one time; a server that floods its log is not read in full
_LONGEST_LINE = 2000


class StartPhase(Value):
    """A part of a start: what the log says when it begins and when it is over."""

    name: str
    begin: tuple[str, ...] = Field(min_length=1)
    end: tuple[str, ...] = Field(min_length=1)


class EngineWords(Value):
    """What one family of engines says; see the file's head."""

    engine: str
    phases: tuple[StartPhase, ...] = ()
    version: tuple[str, ...] = ()
    version_path: str | None = None
    version_keys: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def _all_words() -> tuple[EngineWords, ...]:
    content: Any = yaml.safe_load(Path(__file__).with_name("start_phases.yaml").read_text(encoding="utf-8"))
    return tuple(EngineWords.model_validate(one) for one in content["engines"])


def engine_words(engine: str) -> EngineWords:
    """What this engine says; nothing is known of an engine that is not in the file."""
    return next((words for words in _all_words() if engine.startswith(words.engine)), EngineWords(engine=engine))


@lru_cache(maxsize=64)
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(patterns) or r"(?!)")


def spoken_version(engine: str, text: str) -> str | None:
    """The version that the log names; None where it does not."""
    match = _any_of(engine_words(engine).version).search(text)
    return None if match is None else next(group for group in match.groups() if group)


class StartLog:
    """Follows the log of one starting server. Times are those at which a line was seen, on the monotonic clock."""

    def __init__(self, path: Path, engine: str) -> None:
        self._path = path
        self._phases = engine_words(engine).phases
        self._offset = 0
        self._rest = b""
        self._begun: dict[str, float] = {}
        self._ended: dict[str, float] = {}

    def read(self) -> None:
        """Take in what is new; cheap when nothing is."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size == self._offset:
            return
        if not self._phases:
            self._offset = size
            return
        start = self._offset if self._offset < size else 0  # the cap dropped the middle of the file
        if size - start > MOST_BYTES:
            start, self._rest = size - MOST_BYTES, b""
        with self._path.open("rb") as file:
            file.seek(start)
            data = self._rest + file.read(size - start)
        self._offset = size
        *lines, self._rest = re.split(rb"[\r\n]", data)
        self._rest = self._rest[-_LONGEST_LINE:]
        now = time.monotonic()
        for line in lines:
            if line:
                self._take(line[:_LONGEST_LINE].decode("utf-8", "replace"), now)

    def open_for_s(self) -> dict[str, float]:
        """The phases that have begun and are not over, with the seconds since they began."""
        now = time.monotonic()
        return {name: now - begun for name, begun in self._begun.items() if name not in self._ended}

    def durations_s(self) -> dict[str, float]:
        """Of the phases that are over."""
        return {name: round(ended - self._begun[name], 3) for name, ended in self._ended.items()}

    def _take(self, line: str, now: float) -> None:
        for phase in self._phases:
            if phase.name in self._begun:
                if _any_of(phase.end).search(line):
                    self._ended[phase.name] = now
            elif _any_of(phase.begin).search(line):
                self._begun[phase.name] = now


class StartLogs:
    """The logs of all roles of one attempt while they start, and the limits on the parts of a start."""

    def __init__(self, logs: Mapping[str, Path], engine: str, limits: Deadlines) -> None:
        self._logs = {role: StartLog(path, engine) for role, path in logs.items()}
        self._limits = {WEIGHTS: limits.weights_s, CAPTURE: limits.capture_s}

    def overdue(self) -> str | None:
        """The first part of a start that takes longer than it may, in words; reads what is new."""
        for role, log in self._logs.items():
            log.read()
            for part, seconds in log.open_for_s().items():
                limit = self._limits.get(part)
                if limit is not None and seconds > limit:
                    whose = "" if len(self._logs) == 1 else f" of {role}"
                    return f"{part}{whose} not over after {limit:g} s"
        return None

    def compiles(self, role: str) -> bool:
        """Whether the role's engine is compiling, by its log as far as it was read."""
        return COMPILE in self._logs[role].open_for_s()

    def durations_s(self) -> dict[str, float]:
        """Of each part that is over, that of the slowest role; reads what is new."""
        longest: dict[str, float] = {}
        for log in self._logs.values():
            log.read()
            for part, seconds in log.durations_s().items():
                longest[part] = max(seconds, longest.get(part, 0.0))
        return longest
