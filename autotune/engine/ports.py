"""What the engine needs from outside. Each port has a contract suite in `tests/contracts/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from pydantic import Field

from autotune.domain.device import DeviceLease, DeviceUse, Inventory, Placement, Quarantine
from autotune.domain.failure import Failure
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.knobs import KnobValue
from autotune.domain.objective import Verdict
from autotune.domain.space import SearchSpace
from autotune.domain.study import Study, StudySpec, StudyState
from autotune.domain.template import LaunchTemplate
from autotune.domain.trial import Attempt, NewTrial, StudyPhase, Trial, TrialState
from autotune.domain.value import Value

T = TypeVar("T")


class Event(Value):
    """One fact of the append-only log; `seq` grows by one and has no gaps."""

    seq: int
    at: datetime
    kind: str
    study_id: int
    trial_number: int | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class TrialFilter(Value):
    """Which trials of a study; None means any."""

    state: TrialState | None = None
    phase: StudyPhase | None = None
    failure_class: str | None = None
    feasible: bool | None = None


ANY_TRIAL = TrialFilter()


class TrialBrief(Value):
    """What a list of studies needs of a trial. `objective` in the study's own unit."""

    number: int
    state: TrialState
    phase: StudyPhase
    label: str
    objective: float | None
    feasible: bool | None


class Page(Value, Generic[T]):
    """A slice of a list and the length of the whole."""

    items: tuple[T, ...]
    total: int


class StudyStore(Protocol):
    """The only record. Every method is one transaction; values go in and come out, never rows.

    A change of state is a compare-and-set with its event in the same transaction. Thread-safe.
    """

    def create_study(self, spec: StudySpec, space: SearchSpace, idempotency_key: str | None = None) -> Study:
        """A new running study. The same key again gives the same study; Conflict when the body differs."""
        ...

    def study(self, study_id: int) -> Study:
        """Raises NotFound."""
        ...

    def space_of(self, study_id: int) -> SearchSpace:
        """The space as it was when the study was created. Raises NotFound."""
        ...

    def studies(self, state: StudyState | None = None, offset: int = 0, limit: int = 100) -> Page[Study]:
        """Newest first."""
        ...

    def set_phase(self, study_id: int, phase: StudyPhase) -> None:
        """Idempotent; Conflict when the study is finished."""
        ...

    def finish_study(self, study_id: int, state: StudyState, finding: str) -> Study:
        """From running to a final state, once; Conflict afterwards. Waiting trials become cancelled."""
        ...

    def resume_study(self, study_id: int) -> Study:
        """From cancelled or failed back to running; Conflict for any other state."""
        ...

    def add_trial(self, study_id: int, trial: NewTrial) -> Trial:
        """Commits a waiting trial under the next free number, from 0. Conflict when the study is finished."""
        ...

    def start_attempt(self, study_id: int, number: int, uid: str, placement: Placement | None = None) -> Trial:
        """waiting -> running with `attempt` raised by one; the devices of the placement are leased to it.

        Conflict from any other state, in a finished study, for a uid that was used before, and where one of the
        devices is leased or in quarantine. A lease goes on after the attempt's end, with its time, until
        `release_device` or `quarantine_device`.
        """
        ...

    def finish_trial(
        self, study_id: int, number: int, attempt: int, outcome: TrialOutcome, verdict: Verdict | None
    ) -> Trial:
        """running -> measured or failed, exactly once, and only by its current attempt.

        Raises TrialAlreadyFinished for a second result, Conflict for another attempt's, by number or by uid.
        """
        ...

    def lose_attempt(self, study_id: int, number: int, attempt: int, failure: Failure) -> Trial:
        """running -> waiting: the attempt was lost to the infrastructure and is kept as an event."""
        ...

    def attempts(self, study_id: int, number: int) -> Sequence[Attempt]:
        """The launches of a trial, in order. Raises NotFound."""
        ...

    def cancel_trial(self, study_id: int, number: int) -> Trial:
        """waiting or running -> cancelled. TrialAlreadyFinished when finished."""
        ...

    def trial(self, study_id: int, number: int) -> Trial:
        """Raises NotFound."""
        ...

    def trials(
        self, study_id: int, where: TrialFilter = ANY_TRIAL, offset: int = 0, limit: int | None = None
    ) -> Page[Trial]:
        """By number, ascending. Raises NotFound for an unknown study."""
        ...

    def briefs(self, study_ids: Sequence[int]) -> Mapping[int, Sequence[TrialBrief]]:
        """The trials of several studies in short, by number; an unknown study has none."""
        ...

    def device_leases(self) -> Sequence[DeviceLease]:
        """All of them, by host and device."""
        ...

    def release_device(self, lease: DeviceLease) -> None:
        """Give one device back; nothing happens when that attempt no longer has it."""
        ...

    def quarantine_device(self, quarantine: Quarantine) -> None:
        """Set a device aside, in place of the lease of an attempt that is over; the first reason stays."""
        ...

    def quarantines(self) -> Sequence[Quarantine]:
        """By host and device."""
        ...

    def lift_quarantine(self, host: str, device: int) -> Quarantine:
        """The device may be leased again. Raises NotFound where it is not in quarantine."""
        ...

    def put_inventory(self, inventory: Inventory) -> None:
        """What a host has, from now on."""
        ...

    def inventories(self) -> Sequence[Inventory]:
        """What hosts had when they were last looked at, by host."""
        ...

    def events(self, after: int, limit: int = 500) -> Sequence[Event]:
        """Events with seq > after, ascending."""
        ...

    def last_event(self) -> int:
        """The highest seq, 0 when there is none."""
        ...

    def hold_lease(self, name: str, owner: str, ttl_s: float) -> bool:
        """Take or renew the lease; False while another owner's has not run out."""
        ...

    def release_lease(self, name: str, owner: str) -> None:
        """Give the lease back; nothing happens when it is not ours."""
        ...

    def lease_owner(self, name: str) -> str | None:
        """Who holds the lease now; None when nobody does or it has run out."""
        ...


class Proposer(Protocol):
    """Chooses what to try next in the search phase. Its state is nothing but the trials it was told."""

    def ask(self) -> Mapping[str, KnobValue] | None:
        """Raw values of a candidate that is neither told nor pending; None when the space is exhausted."""
        ...

    def pending(self, trial: Trial) -> None:
        """The trial was committed: its outcome will be told."""
        ...

    def tell(self, trial: Trial) -> None:
        """A finished trial of any phase. Cancelled ones free their pending place and teach nothing."""
        ...


class ProposerSource(Protocol):
    """Makes a proposer for a study and rebuilds it from what is stored."""

    def proposer(self, study: Study, space: SearchSpace, trials: Sequence[Trial]) -> Proposer: ...


class TrialExecutor(Protocol):
    """Runs attempts somewhere else. An attempt belongs to its uid, not to this process: it survives us."""

    def capacity(self) -> int:
        """How many more jobs can be submitted now."""
        ...

    def hosts(self) -> Sequence[str]:
        """The hosts that may take attempts, named as in `Provenance.host` and `TrialJob.avoid_hosts`."""
        ...

    def hosts_with_room(self) -> Sequence[str]:
        """Those of them that can take one more attempt now. Raises Unavailable as `capacity` does."""
        ...

    def submit(self, job: TrialJob) -> None:
        """Start the attempt at most once, even when called again or by another process; on `job.host` where it has one.

        Raises Unavailable when the executor, or that host, can't take it now.
        """
        ...

    def adopt(self, job: TrialJob) -> bool:
        """After a restart: take over an attempt that was submitted before.

        True when it runs, or ended and its outcome will be collected; False when no trace of it is left.
        """
        ...

    def collect(self, timeout_s: float) -> Sequence[TrialOutcome]:
        """Outcomes that have arrived, each at least once until acknowledged; waits at most timeout_s.

        A lost worker comes back as a Failure of class infrastructure.
        """
        ...

    def acknowledge(self, uid: str) -> None:
        """The outcome is stored: forget the attempt and clean up what it left on the host."""
        ...

    def cancel(self, uid: str) -> None:
        """End the attempt and all its processes; no outcome comes. Nothing happens when it is unknown."""
        ...

    def close(self) -> None:
        """Let go of the executor; attempts in flight go on."""
        ...


class DeviceSource(Protocol):
    """The devices of the hosts that take attempts."""

    def inventories(self) -> Sequence[Inventory]:
        """One for each host; with its `problem` for one that does not answer. Raises Unavailable without hosts."""
        ...

    def use(self, host: str) -> Mapping[int, DeviceUse] | None:
        """Memory by device; None for a host that can't tell. Raises Unavailable for one that does not answer."""
        ...


class SpaceSource(Protocol):
    """The search spaces that are known here."""

    def names(self) -> Sequence[str]: ...

    def space(self, name: str) -> SearchSpace:
        """Raises NotFound with the known names."""
        ...


class TemplateSource(Protocol):
    """The launch templates of this host."""

    def names(self) -> Sequence[str]: ...

    def template(self, name: str) -> LaunchTemplate:
        """Raises NotFound with the known names."""
        ...


class Clock(Protocol):
    """Time, so that tests can turn it."""

    def now(self) -> datetime:
        """UTC, with its zone."""
        ...

    def sleep(self, seconds: float) -> None: ...
