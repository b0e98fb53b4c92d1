"""The catalogue of failure signatures, read from `signatures.yaml`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator

from autotune.domain.failure import Bound, FailureClass, FailureValue, RetryPolicy
from autotune.domain.value import Value

# How runtimes and their callers write a six-digit code; what follows is compared as a number.
_CODE = re.compile(
    r"(?:\b[Ee]rror ?(?:code|no)(?: is)?|\bErrCode|\berrcode|\berrorCode|\bretCode|\bruntime result"
    r"|\bfailed(?:,? ret(?:urn)?)?)\s*[:=]?\s*(?P<code>\d{6})\b"
)


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        re.compile(pattern)
    return patterns


def _spans(codes: Any) -> Any:
    """`107001` and `507053-507056` as first and last."""
    if not isinstance(codes, list):
        return codes
    ends = [str(code).split("-") for code in codes]
    return [(int(pair[0]), int(pair[-1])) for pair in ends]


class ValuePattern(Value):
    """A number in the lines that decide, with what it means; its only group is the number."""

    name: str
    unit: str
    regex: str
    setting: str | None = None
    bound: Bound | None = None

    def read(self, text: str) -> FailureValue | None:
        """The first such number in the text."""
        found = re.search(self.regex, text)
        try:
            number = float(found[1]) if found else None
        except ValueError:  # `1.2.3` is no number
            return None
        if number is None or not math.isfinite(number):
            return None
        return FailureValue(name=self.name, value=number, unit=self.unit, setting=self.setting, bound=self.bound)


class Signature(Value):
    """One kind of failure and the words by which engines tell of it; see the file's head for the fields."""

    name: str
    failure_class: FailureClass = Field(alias="class")
    regex: tuple[str, ...] = Field(min_length=1)
    samples: tuple[str, ...] = Field(min_length=1)
    source: str
    codes: tuple[tuple[int, int], ...] = ()
    engines: tuple[str, ...] = ()
    before_ready: bool = False
    in_reports: bool = False
    min_free_share: float = 0.0
    weak: bool = False
    retry: RetryPolicy | None = None
    settings: tuple[str, ...] = ()
    values: tuple[ValuePattern, ...] = ()

    _patterns_compile = field_validator("regex")(_check_patterns)
    _codes_are_spans = field_validator("codes", mode="before")(_spans)

    def applies(self, engine: str, ready: bool) -> bool:
        """Whether it may be looked for in a log of this engine and time."""
        return (not self.engines or engine in self.engines) and not (self.before_ready and ready)

    def search(self, text: str) -> re.Match[str] | None:
        """The oldest match in the text."""
        firsts = [next(filter(self._counts, _compiled(pattern).finditer(text)), None) for pattern in self.regex]
        if self.codes:
            firsts.append(next(filter(self._has_code, _CODE.finditer(text)), None))
        return min((m for m in firsts if m), key=lambda m: m.start(), default=None)

    def read_values(self, text: str) -> tuple[FailureValue, ...]:
        """One value a name and unit, by the first pattern that finds it."""
        found: dict[tuple[str, str], FailureValue] = {}
        for value in (pattern.read(text) for pattern in self.values):
            if value is not None:
                found.setdefault((value.name, value.unit), value)
        return tuple(found.values())

    def _has_code(self, match: re.Match[str]) -> bool:
        code = int(match["code"])
        return any(first <= code <= last for first, last in self.codes)

    def _counts(self, match: re.Match[str]) -> bool:
        if not self.min_free_share:
            return True
        try:
            return float(match["free"]) >= self.min_free_share * float(match["total"])
        except ValueError:  # `1.2.3` is no number
            return False


class ClassPage(Value):
    """What is known about a class of failures: for the table of classes, and for one failure's page."""

    means: str
    cause: str
    does: str
    retry: RetryPolicy
    settings: tuple[str, ...] = ()


class Recovery(Value):
    """A line by which an engine says that it goes on, and which of the few lines above it are void for that."""

    after: str
    drops: str
    lines: int = Field(ge=1, le=20)


class Catalogue(Value):
    """Every signature, in the order in which they decide, every class, and what is no evidence.

    `ending` matches the line by which an engine starts to end in order, `weights` the first line of loading.
    """

    signatures: tuple[Signature, ...]
    classes: dict[FailureClass, ClassPage]
    noise: tuple[str, ...]
    recovered: tuple[Recovery, ...]
    ending: str
    weights: str

    @field_validator("classes")
    @classmethod
    def _every_class(cls, classes: dict[FailureClass, ClassPage]) -> dict[FailureClass, ClassPage]:
        if missing := sorted(set(FailureClass) - classes.keys()):
            raise ValueError(f"no page for {', '.join(missing)}")
        return classes

    @cached_property
    def _by_name(self) -> dict[str, Signature]:
        return {signature.name: signature for signature in self.signatures}

    def signature(self, name: str | None) -> Signature | None:
        """The signature of this name."""
        return None if name is None else self._by_name.get(name)

    def settings(
        self, failure_class: FailureClass, signature: str | None, values: Iterable[FailureValue]
    ) -> tuple[str, ...]:
        """Names of settings that are often to blame for such a failure, as they are written at launch."""
        known = self.signature(signature)
        named = [value.setting for value in values if value.setting]
        often = known.settings if known and known.settings else self.classes[failure_class].settings
        return tuple(dict.fromkeys([*named, *often]))

    def looked_for(self, engine: str, ready: bool, *, weak: bool) -> Iterator[Signature]:
        """The signatures that may decide, in their order."""
        return (s for s in self.signatures if s.weak == weak and s.applies(engine, ready))


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue of this version; read once."""
    content: dict[str, Any] = {}
    for name in ("signatures.yaml", "classes.yaml", "noise.yaml"):
        content |= yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return Catalogue.model_validate(content)
