"""The two messages between control plane and worker: a job goes out, an outcome comes back."""

from __future__ import annotations

from pydantic import Field, model_validator

from autotune.domain.candidate import Candidate
from autotune.domain.deployment import Deployment
from autotune.domain.early_abort import HopelessAbove
from autotune.domain.effective import Corrected, EffectiveConfig
from autotune.domain.failure import Failure
from autotune.domain.launch_plan import LaunchPlan
from autotune.domain.learned_limits import PhaseLimits
from autotune.domain.measurement import Measurement
from autotune.domain.objective import Limit
from autotune.domain.value import Value
from autotune.domain.workload import Workload


class TrialJob(Value):
    """One attempt of one trial. `uid` is unique for ever: it names the actor, the folder, the processes.

    `seed` is that of the prompts, the same for all trials of a study; `study_seed`, from its file, that of the prefix
    which prompts share and of the times at which requests become due. `sla`: what goodput counts by.
    `stall_limit_s`: end the launch when its log is silent for so long, where a rule asks for less patience
    than the template has. `limits`: what earlier trials of the study say about the length of a phase.
    `avoid_hosts`: run elsewhere where that is possible. `host_devices` were leased for it on `host`, where it must
    run; without them it takes the first ones of whichever host it gets.
    `hopeless_above`: end the load where it can be told that the trial is far worse than the best one.
    """

    uid: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    study_id: int
    trial_number: int
    attempt: int
    deployment: Deployment
    plan: LaunchPlan
    workload: Workload
    seed: int
    study_seed: int = 0
    sla: tuple[Limit, ...] = ()
    stall_limit_s: float | None = None
    limits: PhaseLimits | None = None
    avoid_hosts: tuple[str, ...] = ()
    host_devices: tuple[int, ...] = ()
    hopeless_above: HopelessAbove | None = None
    host: str | None = None


class LaunchedRole(Value):
    """The command that was really run, with `{host}`, `{port}` and `{trial_dir}` left open for an export.

    In a container, `argv` and `env` are those within it. `run` is what started it, such as `docker run ...`, up to
    the environment and the image, and `client_env` is for that. A role that ran already has an `url` and no `argv`.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    run: tuple[str, ...] = ()
    image: str | None = None
    client_env: dict[str, str] = Field(default_factory=dict)
    url: str | None = None


class Provenance(Value):
    """Where and with what an attempt ran.

    `virtual_time`: no process ran; durations are those of a real launch, as the simulation counts them. By role:
    `commands` is the command as it was run, `devices` what it was given, such as `0,1`, and `engine_versions` what
    the server itself said. `code` names the autotune that ran it: version and digest of the source. Secrets are
    masked. `images` is what lay behind the name of each role's image: its id and its digests.
    """

    host: str
    version: str
    template: str
    simulated: bool = False
    virtual_time: bool = False
    roles: dict[str, LaunchedRole] = Field(default_factory=dict)
    commands: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    devices: dict[str, str] = Field(default_factory=dict)
    engine_versions: dict[str, str] = Field(default_factory=dict)
    code: str | None = None
    images: dict[str, str] = Field(default_factory=dict)


class TrialOutcome(Value):
    """Either a measurement or a failure, never both, never neither.

    `durations_s` by phase; `weights` and `capture` are parts of `ready`, of the role that took longest.

    `effective` is the configuration of each role by its own log, for servers that became ready. `counted` is the
    candidate that was really measured, set by the control plane where the engine corrected a value.
    """

    uid: str
    measurement: Measurement | None = None
    failure: Failure | None = None
    provenance: Provenance | None = None
    durations_s: dict[str, float] = Field(default_factory=dict)
    log_tail: str = ""
    effective: dict[str, EffectiveConfig] = Field(default_factory=dict)
    counted: Candidate | None = None

    @property
    def corrected(self) -> tuple[tuple[str, Corrected], ...]:
        """What the engine replaced, with the role: a measurement counts for the configuration that really ran."""
        return tuple((role, change) for role, config in self.effective.items() for change in config.corrected)

    @model_validator(mode="after")
    def _one_of_two(self) -> TrialOutcome:
        if (self.measurement is None) == (self.failure is None):
            raise ValueError("an outcome is either a measurement or a failure")
        return self
