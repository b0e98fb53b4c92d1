"""A candidate: one value for every knob of a space."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from autotune.domain.knobs import KnobValue
from autotune.domain.value import Value


class Candidate(Value):
    """Immutable; two candidates that launch the same thing have one fingerprint.

    `values` maps knob name to value; an unset or inactive knob is simply absent.
    """

    values: dict[str, KnobValue] = Field(default_factory=dict)

    @field_validator("values", mode="before")
    @classmethod
    def _drop_unset(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            return {str(k): v for k, v in values.items() if v is not None}
        return values

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that depend on the values alone, not on their order."""
        text = json.dumps(self.values, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        """By fingerprint: Python's `True == 1 == 1.0` are three launches."""
        return isinstance(other, Candidate) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def difference(self, other: Candidate) -> dict[str, tuple[KnobValue, KnobValue]]:
        """Knobs that differ: name to (mine, the other's); `None` stands for unset."""
        names = sorted(self.values.keys() | other.values.keys())
        pairs = ((n, self.values.get(n), other.values.get(n)) for n in names)
        return {n: (a, b) for n, a, b in pairs if json.dumps(a) != json.dumps(b)}
