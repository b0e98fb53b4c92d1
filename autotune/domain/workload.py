"""The offered load of a study."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any

from pydantic import Field, StrictInt, field_validator, model_validator

from autotune.domain.value import Value

LEVEL_NAME = r"c\d+(?:r\d+(?:\.\d+)?)?"
"""The form of every level's name: `c8`, `c48r2`, `c48r0.5`."""


class Arrivals(StrEnum):
    """How the requests of an open loop follow each other: evenly, or as independent users send them."""

    CONSTANT = "constant"
    POISSON = "poisson"


class LoadLevel(Value):
    """`requests` requests, at most `concurrency` of them in flight.

    Closed loop, without `rate_per_s`: so many streams are kept busy. Open loop, with it: requests become due on an
    absolute schedule of so many a second on average, whatever the server does; one that is due while
    `concurrency` are in flight is sent when the first of them has ended. `arrivals` is of an open loop only and
    Poisson there unless said otherwise.
    """

    concurrency: StrictInt = Field(ge=1, le=1024)
    requests: StrictInt = Field(ge=1, le=100_000)
    rate_per_s: float | None = Field(default=None, ge=0.001, le=10_000, exclude_if=lambda rate: rate is None)
    arrivals: Arrivals | None = Field(default=None, exclude_if=lambda arrivals: arrivals is None)

    @model_validator(mode="before")
    @classmethod
    def _poisson(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and value.get("rate_per_s") is not None and value.get("arrivals") is None:
            return {**value, "arrivals": Arrivals.POISSON}
        return value

    @model_validator(mode="after")
    def _open_or_closed(self) -> LoadLevel:
        if self.rate_per_s is None and self.arrivals is not None:
            raise ValueError("arrivals: are those of an open loop, and there is no rate_per_s; add one or remove it")
        return self

    @property
    def name(self) -> str:
        """`c8` for eight streams, `c48r2` for at most 48 at 2 requests/s: the key in every table and JSON object."""
        if self.rate_per_s is None:
            return f"c{self.concurrency}"
        return f"c{self.concurrency}r{Decimal(str(self.rate_per_s)).normalize():f}"


class Workload(Value):
    """What every trial of a study is measured under. Lengths are in tokens.

    The first `shared_prefix_tokens` of `prompt_tokens` are the same in all requests of a study, the rest never.
    """

    prompt_tokens: StrictInt = Field(ge=1, le=1_000_000)
    shared_prefix_tokens: StrictInt = Field(default=0, ge=0)
    output_tokens: StrictInt = Field(ge=2, le=100_000)
    levels: tuple[LoadLevel, ...] = Field(min_length=1, max_length=16)
    warmup_requests: StrictInt = Field(default=2, ge=1, le=10_000)
    request_timeout_s: float = Field(default=120.0, gt=0, le=86_400)

    @field_validator("levels")
    @classmethod
    def _distinct(cls, levels: tuple[LoadLevel, ...]) -> tuple[LoadLevel, ...]:
        names = [level.name for level in levels]
        if len(set(names)) != len(names):
            raise ValueError(
                f"each concurrency may occur once at a rate, got {', '.join(names)}; "
                "remove a level, or give it another concurrency or rate_per_s"
            )
        return levels

    @model_validator(mode="after")
    def _rest_of_its_own(self) -> Workload:
        if self.shared_prefix_tokens >= self.prompt_tokens:
            raise ValueError(
                f"shared_prefix_tokens: {self.shared_prefix_tokens} is not below prompt_tokens, {self.prompt_tokens}; "
                "lower it, or raise prompt_tokens: each request needs tokens of its own"
            )
        return self

    @property
    def own_tokens(self) -> int:
        """Tokens of a prompt that no other request has."""
        return self.prompt_tokens - self.shared_prefix_tokens

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Each one once, as they come."""
        return tuple(dict.fromkeys(level.concurrency for level in self.levels))
