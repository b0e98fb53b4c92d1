"""The offered load of a study."""

from __future__ import annotations

from pydantic import Field, StrictInt, field_validator

from autotune.domain.value import Value


class LoadLevel(Value):
    """Closed loop: `concurrency` streams kept busy until `requests` requests were sent."""

    concurrency: StrictInt = Field(ge=1, le=1024)
    requests: StrictInt = Field(ge=1, le=100_000)

    @property
    def name(self) -> str:
        """`c8` for eight streams: the key of this level in every table and JSON object."""
        return f"c{self.concurrency}"


class Workload(Value):
    """What every trial of a study is measured under. Lengths are in tokens."""

    prompt_tokens: StrictInt = Field(ge=1, le=1_000_000)
    output_tokens: StrictInt = Field(ge=2, le=100_000)
    levels: tuple[LoadLevel, ...] = Field(min_length=1, max_length=16)
    warmup_requests: StrictInt = Field(default=2, ge=1, le=10_000)
    request_timeout_s: float = Field(default=120.0, gt=0, le=86_400)

    @field_validator("levels")
    @classmethod
    def _distinct(cls, levels: tuple[LoadLevel, ...]) -> tuple[LoadLevel, ...]:
        names = [level.name for level in levels]
        if len(set(names)) != len(names):
            raise ValueError(f"each concurrency may occur once, got {', '.join(names)}")
        return levels

    @property
    def concurrencies(self) -> tuple[int, ...]:
        return tuple(level.concurrency for level in self.levels)
