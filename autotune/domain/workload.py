"""The offered load of a study."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any

from pydantic import Field, StrictInt, field_validator, model_validator

from autotune.domain.presets import expanded
from autotune.domain.value import Value

LEVEL_NAME = r"c\d+(?:t|r\d+(?:\.\d+)?(?:to\d+(?:\.\d+)?)?)?"
"""The form of every level's name: `c8`, `c48r2`, `c48r0.5`, `c48r1to4` for a ramp, `c48t` for a trace."""

MAX_REQUESTS = 100_000


class Arrivals(StrEnum):
    """How the requests of an open loop follow each other: evenly, as independent users send them, or in bursts."""

    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"


class CachePolicy(StrEnum):
    """What a level finds in the server's prefix cache.

    `primed`: nothing but the shared prefix. `flush`: nothing. `foreign`: what a warm-up of its own at its concurrency
    left, with prompts and prefixes that no measured request has. `keep`: what came before it. Emptied only where
    the server can do that.
    """

    PRIMED = "primed"
    FLUSH = "flush"
    FOREIGN = "foreign"
    KEEP = "keep"


class LengthControl(StrEnum):
    """How answers get their exact length. `min_tokens` costs the server a look at every step: for parity only."""

    IGNORE_EOS = "ignore_eos"
    MIN_TOKENS = "min_tokens"


class LoadLevel(Value):
    """`requests` requests, at most `concurrency` of them in flight.

    Closed loop, without `rate_per_s`: so many streams are kept busy; they start together or, with `stagger`, spread
    over the time that one request of the warm-up took. Open loop, with it: requests become due on an
    absolute schedule of so many a second on average, whatever the server does; one that is due while
    `concurrency` are in flight is sent when the first of them has ended. `arrivals` is of an open loop only and
    Poisson there unless said otherwise; `burstiness` is the shape of gamma arrivals: 1 is Poisson, less comes in
    bursts, more is smoother. With `rate_to_per_s` the rate goes from one to the other in a straight line.
    Trace, with `trace_file`: requests become due as its lines say; a path on the host that sends the load.

    With `duration_s` no request is sent after so many seconds. With it or a trace, `requests` is the most that are
    sent, and may be left out.

    With `precision`, of a closed loop, `requests` is the most that are sent: the level ends as soon as its mean time
    per token is known to such a share of itself (0.01 is 1 %). One process sends it; `stagger` ends it sooner.
    """

    concurrency: StrictInt = Field(ge=1, le=1024)
    requests: StrictInt = Field(ge=1, le=MAX_REQUESTS)
    rate_per_s: float | None = Field(default=None, ge=0.001, le=10_000, exclude_if=lambda rate: rate is None)
    arrivals: Arrivals | None = Field(default=None, exclude_if=lambda arrivals: arrivals is None)
    burstiness: float | None = Field(default=None, ge=0.01, le=100, exclude_if=lambda shape: shape is None)
    rate_to_per_s: float | None = Field(default=None, ge=0.001, le=10_000, exclude_if=lambda rate: rate is None)
    trace_file: str | None = Field(default=None, pattern=r"^/", exclude_if=lambda path: path is None)
    duration_s: float | None = Field(default=None, gt=0, le=86_400, exclude_if=lambda seconds: seconds is None)
    precision: float | None = Field(default=None, ge=0.001, le=0.5, exclude_if=lambda share: share is None)
    stagger: bool = Field(default=False, exclude_if=lambda stagger: not stagger)
    cache: CachePolicy = Field(default=CachePolicy.PRIMED, exclude_if=lambda cache: cache is CachePolicy.PRIMED)

    @model_validator(mode="before")
    @classmethod
    def _derived(cls, value: Any) -> Any:
        """Poisson arrivals, and as many requests as the duration may need."""
        if not isinstance(value, Mapping):
            return value
        derived: dict[str, Any] = {}
        if value.get("rate_per_s") is not None and value.get("arrivals") is None:
            derived["arrivals"] = Arrivals.POISSON if value.get("burstiness") is None else Arrivals.GAMMA
        open_ended = value.get("duration_s") is not None or value.get("trace_file") is not None
        if open_ended and value.get("requests") is None:
            derived["requests"] = MAX_REQUESTS
        return {**value, **derived}

    @model_validator(mode="after")
    def _open_or_closed(self) -> LoadLevel:
        for problem in self._contradictions():
            raise ValueError(problem)
        return self

    def _contradictions(self) -> list[str]:
        found: list[str] = []
        for field, value in (
            ("arrivals", self.arrivals),
            ("burstiness", self.burstiness),
            ("rate_to_per_s", self.rate_to_per_s),
        ):
            if value is not None and self.rate_per_s is None:
                verb = "are those" if field == "arrivals" else "is that"
                found.append(f"{field}: {verb} of an open loop, and there is no rate_per_s; add one or remove it")
        if self.burstiness is not None and self.arrivals is not Arrivals.GAMMA:
            found.append(f"burstiness: is that of gamma arrivals, not of {self.arrivals}; remove it or change arrivals")
        if self.arrivals is Arrivals.GAMMA and self.burstiness is None:
            found.append("burstiness: gamma arrivals need one; 1 is Poisson, less comes in bursts, more is smoother")
        if self.trace_file is not None and self.rate_per_s is not None:
            found.append("trace_file: says when requests are due, and so does rate_per_s; remove one of them")
        if self.stagger and (self.rate_per_s is not None or self.trace_file is not None):
            found.append("stagger: is that of a closed loop, and this level has a schedule; remove it")
        if self.precision is not None and (self.rate_per_s is not None or self.trace_file is not None):
            found.append("precision: is that of a closed loop, and this level has a schedule; remove it")
        return found

    @property
    def name(self) -> str:
        """`c8` for eight streams, `c48r2` for at most 48 at 2 requests/s: the key in every table and JSON object."""
        if self.trace_file is not None:
            return f"c{self.concurrency}t"
        if self.rate_per_s is None:
            return f"c{self.concurrency}"
        end = "" if self.rate_to_per_s is None else f"to{_plain(self.rate_to_per_s)}"
        return f"c{self.concurrency}r{_plain(self.rate_per_s)}{end}"

    @property
    def mean_rate_per_s(self) -> float | None:
        """What is offered over the whole level; None where no rate is."""
        if self.rate_per_s is None or self.rate_to_per_s is None:
            return self.rate_per_s
        return (self.rate_per_s + self.rate_to_per_s) / 2

    @property
    def extent(self) -> str:
        """`x 40` for so many requests, `for 60 s` for a duration, `x its trace`, `x 40 at most` with a precision."""
        if self.duration_s is not None:
            return f"for {self.duration_s:g} s"
        most = "" if self.precision is None else f" at most, to {self.precision:.2g}"
        return "x its trace" if self.requests == MAX_REQUESTS else f"x {self.requests}{most}"


class Workload(Value):
    """What every trial of a study is measured under. Lengths are in tokens.

    The first `shared_prefix_tokens` of `prompt_tokens` are the same in all requests of a study, the rest never; with
    `prefix_groups` there are so many such prefixes, taken in turn. With `requests_file`, requests are those of a file
    of JSON lines on the host that sends the load, and `prompt_tokens` and `output_tokens` are the most that one of
    them takes. `exact_text`: where prompts are text, the server's own tokenizer finds them of exactly
    `prompt_tokens`, and a server that has none is refused.

    `keep_streams`: what the server answered is kept in the attempt's folder; false where answers are private.

    In place of all that a `preset` may stand, by name, with what differs from it beside it.
    """

    prompt_tokens: StrictInt = Field(ge=1, le=1_000_000)
    shared_prefix_tokens: StrictInt = Field(default=0, ge=0)
    prefix_groups: StrictInt = Field(default=1, ge=1, le=10_000, exclude_if=lambda groups: groups == 1)
    output_tokens: StrictInt = Field(ge=2, le=100_000)
    levels: tuple[LoadLevel, ...] = Field(min_length=1, max_length=16)
    warmup_requests: StrictInt = Field(default=2, ge=1, le=10_000)
    request_timeout_s: float = Field(default=120.0, gt=0, le=86_400)
    keep_streams: bool = Field(default=True, exclude_if=lambda keep: keep)
    length_control: LengthControl = Field(
        default=LengthControl.IGNORE_EOS, exclude_if=lambda control: control is LengthControl.IGNORE_EOS
    )
    exact_text: bool = Field(default=False, exclude_if=lambda exact: not exact)
    requests_file: str | None = Field(default=None, pattern=r"^/", exclude_if=lambda path: path is None)

    @model_validator(mode="before")
    @classmethod
    def _of_preset(cls, value: Any) -> Any:
        return expanded(value) if isinstance(value, Mapping) and "preset" in value else value

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
        if self.prefix_groups > 1 and self.shared_prefix_tokens == 0:
            raise ValueError("prefix_groups: there is no shared prefix; add shared_prefix_tokens or remove it")
        if self.requests_file is not None and (self.shared_prefix_tokens or self.exact_text):
            raise ValueError(
                "requests_file: its requests are sent as they are; remove shared_prefix_tokens and exact_text"
            )
        return self

    @classmethod
    def of_preset(cls, name: str, **changes: Any) -> Workload:
        """A preset with changes. Raises pydantic.ValidationError for an unknown name or change."""
        return cls.model_validate({"preset": name, **changes})

    @property
    def own_tokens(self) -> int:
        """Tokens of a prompt that no other request has."""
        return self.prompt_tokens - self.shared_prefix_tokens

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Each one once, as they come."""
        return tuple(dict.fromkeys(level.concurrency for level in self.levels))


def _plain(rate: float) -> str:
    return f"{Decimal(str(rate)).normalize():f}"
