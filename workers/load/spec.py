"""What a load process is told and what it hands back; both are JSON files in the attempt's folder."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, StrictInt, field_validator, model_validator

from autotune.domain.measurement import RequestSample
from autotune.domain.value import Value
from autotune.domain.workload import LoadLevel, Workload

Api = Literal["completions", "chat"]
MAX_WARM_UP_STREAMS = 4  # enough to touch the batched code paths of an engine without a second ramp


class LoadSpec(Value):
    """One whole run against one endpoint.

    `base_url` is the server's root, `http://127.0.0.1:8000`. With `completions` a prompt is a list of token
    ids from `prompt_token_low` to `prompt_token_high`, so that its length is exact; with `chat` it is as many
    words, and its length in tokens is whatever the server's template and tokenizer make of it.
    The same seed gives the same prompts, request by request; `study_seed` gives the prefix that they share and the
    times of an open loop, which are the same for every trial of a study. `api_key_variable` names the variable of
    the load process's environment that holds the key which requests carry.
    """

    base_url: str = Field(pattern=r"^https?://[^/\s]+(/[^\s?#]*)?$")
    model: str = Field(min_length=1)
    workload: Workload
    seed: StrictInt
    study_seed: StrictInt = 0
    api: Api = "completions"
    prompt_token_low: StrictInt = Field(default=100, ge=0)
    prompt_token_high: StrictInt = Field(default=999, ge=1)
    api_key_variable: str | None = None

    @field_validator("base_url")
    @classmethod
    def _bare(cls, base_url: str) -> str:
        return base_url.rstrip("/")

    @model_validator(mode="after")
    def _ordered(self) -> LoadSpec:
        if self.prompt_token_low >= self.prompt_token_high:
            raise ValueError("prompt_token_low must be below prompt_token_high")
        return self

    @property
    def warm_up(self) -> LoadLevel:
        """The load before the first level; its prompts are never used again."""
        streams = min(MAX_WARM_UP_STREAMS, max(self.workload.concurrencies))
        return LoadLevel(concurrency=streams, requests=self.workload.warmup_requests)


class HostFacts(Value):
    """How the load process itself fared while the levels ran.

    `load_average_*`: runnable processes of the host over one minute. `cpu_s`: processor time of this process in
    `window_s` of measuring. `loop_lag_max_ms`: the latest that the event loop came to a timer.
    """

    load_average_before: float
    load_average_after: float
    cpu_s: float
    window_s: float
    involuntary_switches: int
    loop_lag_max_ms: float
    uvloop: bool


class LoadResult(Value):
    """Every request that was sent, failed ones too, but for those that only brought the shared prefix.

    The keys of `levels` are those of the workload, in order. `cache_reset` is the path by which the server emptied
    its prefix cache before the last level; None where it did not.
    """

    warm_up: tuple[RequestSample, ...]
    levels: dict[str, tuple[RequestSample, ...]]
    host: HostFacts
    cache_reset: str | None = None


class LoadTally(Value):
    """Another such line, twice a second: how the phase that runs is doing.

    `failed` of the `ended` requests failed, with `error` as the latest reason; answers that only turn out to be
    wrong when they are read in full are not among them. `idle_s`: since the last word on any open request; None
    while none is open. `waves_ms`: the mean time per token of each wave of good answers, as many as the level has
    streams; whole ones only.
    """

    ended: int
    failed: int
    error: str | None = None
    idle_s: float | None = None
    waves_ms: tuple[float, ...] = ()


class LoadProgress(Value):
    """One line of the load process's standard output: the phase that begins now."""

    phase: Literal["starting", "warm_up", "load", "done"]
    level: str | None = None
