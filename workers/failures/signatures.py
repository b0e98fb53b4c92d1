"""The catalogue of failure signatures, read from `signatures.yaml`."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, field_validator

from autotune.domain.failure import FailureClass
from autotune.domain.value import Value


def _check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        re.compile(pattern)
    return patterns


class Signature(Value):
    """One kind of failure and the words by which engines tell of it; see the file's head for the fields."""

    name: str
    failure_class: FailureClass = Field(alias="class")
    regex: tuple[str, ...] = Field(min_length=1)
    samples: tuple[str, ...] = Field(min_length=1)
    source: str
    engines: tuple[str, ...] = ()
    before_ready: bool = False
    min_free_share: float = 0.0
    weak: bool = False

    _patterns_compile = field_validator("regex")(_check_patterns)

    def applies(self, engine: str, ready: bool) -> bool:
        """Whether it may be looked for in a log of this engine and time."""
        return (not self.engines or engine in self.engines) and not (self.before_ready and ready)

    def search(self, text: str) -> re.Match[str] | None:
        """The oldest match in the text."""
        firsts = (next(filter(self._counts, _compiled(pattern).finditer(text)), None) for pattern in self.regex)
        return min((m for m in firsts if m), key=lambda m: m.start(), default=None)

    def _counts(self, match: re.Match[str]) -> bool:
        if not self.min_free_share:
            return True
        try:
            return float(match["free"]) >= self.min_free_share * float(match["total"])
        except ValueError:  # `1.2.3` is no number
            return False


class Catalogue(Value):
    """Every signature, in the order in which they decide."""

    signatures: tuple[Signature, ...]


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue of this version; read once."""
    content: Any = yaml.safe_load(Path(__file__).with_name("signatures.yaml").read_text(encoding="utf-8"))
    return Catalogue.model_validate(content)
