"""What a load process is told and what it hands back; both are JSON files in the attempt's folder."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, StrictInt, field_validator, model_validator

from autotune.domain.host_load import HostLoad
from autotune.domain.knobs import SERVER
from autotune.domain.measurement import RequestSample
from autotune.domain.server_truth import ServerTruth
from autotune.domain.stop_rule import Decision
from autotune.domain.value import Value
from autotune.domain.workload import LoadLevel, Workload

Api = Literal["completions", "chat"]
STREAMS_OF_A_PROCESS = 64
EVENTS_OF_A_PROCESS = 15_000  # a second: half of a core
MAX_WARM_UP_STREAMS = 4  # enough to touch the batched code paths of an engine without a second ramp


class LoadSpec(Value):
    """One whole run against one endpoint.

    `base_url` is the server's root, `http://127.0.0.1:8000`. With `completions` a prompt is a list of token
    ids from `prompt_token_low` to `prompt_token_high`, so that its length is exact; with `chat` it is as many
    words, and its length in tokens is whatever the server's template and tokenizer make of it.
    The same seed gives the same prompts, request by request; `study_seed` gives the prefix that they share and the
    times of an open loop, which are the same for every trial of a study. `metrics_urls`: the root of each server of a
    deployment, by role; without them the metrics of `base_url` are those of its role `server`.

    `api_key_env`: the environment variable of the load process that holds the server's key; the key itself is in no
    file. `ca_file`: authorities, as PEM, by which the server's certificate is verified in place of the host's own.
    `kernel_stamps`: false takes all times in user space, as on a kernel that gives none. `use_connections`: each
    connection carries a tiny request before a level. `processes`: how many send a level; None: one for every
    `STREAMS_OF_A_PROCESS` streams or `EVENTS_OF_A_PROCESS` events a second, and never more than half of the
    host's cores.
    """

    base_url: str = Field(pattern=r"^https?://[^/\s]+(/[^\s?#]*)?$")
    model: str = Field(min_length=1)
    workload: Workload
    seed: StrictInt
    study_seed: StrictInt = 0
    api: Api = "completions"
    metrics_urls: dict[str, str] = Field(default_factory=dict)
    prompt_token_low: StrictInt = Field(default=100, ge=0)
    prompt_token_high: StrictInt = Field(default=999, ge=1)
    api_key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    ca_file: str | None = None
    kernel_stamps: bool = True
    use_connections: bool = False
    processes: StrictInt | None = Field(default=None, ge=1, le=64)

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
    def servers(self) -> dict[str, str]:
        """Whose metrics are read, by role."""
        return self.metrics_urls or {SERVER: self.base_url}

    @property
    def warm_up(self) -> LoadLevel:
        """The load before the first level; its prompts are never used again."""
        streams = min(MAX_WARM_UP_STREAMS, max(self.workload.concurrencies))
        return LoadLevel(concurrency=streams, requests=self.workload.warmup_requests)


class HostFacts(Value):
    """How the load process and its host fared while the levels ran.

    `load_average_*`: runnable processes of the host over one minute. `cpu_s`: processor time of all load processes in
    `window_s` of measuring, `cpu_ms_per_token` the same for each token that came, `busiest_share` of one core that
    of the busiest process. `loop_lag_max_ms`: the latest that an event loop came to a timer. `steal_share`: of the
    host's processor time, taken by other guests. `clock_step_us`: how far the wall clock moved against the
    monotonic one within a level, at most. `processes`: the most that sent one level.
    """

    load_average_before: float
    load_average_after: float
    cpu_s: float
    window_s: float
    involuntary_switches: int
    loop_lag_max_ms: float
    uvloop: bool
    cpu_ms_per_token: float | None = None
    busiest_share: float | None = None
    steal_share: float | None = None
    clock_step_us: float | None = None
    processes: int = 1

    @property
    def load(self) -> HostLoad:
        """As the rules of trust want it."""
        return HostLoad(
            load_average=max(self.load_average_before, self.load_average_after),
            cpu_share=self.busiest_share,
            cpu_ms_per_token=self.cpu_ms_per_token,
            switches_per_s=self.involuntary_switches / self.window_s if self.window_s else None,
            steal_share=self.steal_share,
            clock_step_us=self.clock_step_us,
            window_s=self.window_s,
            loop_lag_max_ms=self.loop_lag_max_ms,
        )


class LoadResult(Value):
    """Every request that was sent, failed ones too, but for those that only brought the shared prefix.

    The keys of `levels` are those of the workload, in order. `cache_reset` is the path by which the server emptied
    its prefix cache before the last level that wanted that; None where it did not. `continuous_usage`: the server
    told the usage with every event. `server`: what the counters of each role say, by
    level. `stopped`: why each level with a precision ended.
    """

    warm_up: tuple[RequestSample, ...]
    levels: dict[str, tuple[RequestSample, ...]]
    host: HostFacts
    cache_reset: str | None = None
    continuous_usage: bool = False
    server: dict[str, dict[str, ServerTruth]] = Field(default_factory=dict)
    stopped: dict[str, Decision] = Field(default_factory=dict)


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


class ShardSpec(Value):
    """Part `number` of `of` of a level. `took_s`: what requests of the warm-up took."""

    load: LoadSpec
    level: LoadLevel
    number: StrictInt = Field(ge=0)
    of: StrictInt = Field(ge=1)
    continuous: bool = False
    took_s: tuple[float, ...] = ()
    streams_file: str | None = None


class ShardResult(Value):
    """Its requests, by their index in the whole level, and how the process fared."""

    samples: tuple[RequestSample, ...]
    host: HostFacts
