"""Devices, hosts and an executor for tests of the device desk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.domain.device import SETTLE_S, Device, DeviceUse, Inventory
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.study import Study
from autotune.engine.device_desk import DeviceDesk
from autotune.engine.dispatch import Dispatcher
from autotune.errors import Unavailable
from autotune.proposers.tpe import TpeSource
from tests import builders
from tests.fakes import InMemoryStudyStore, ManualClock, ScriptedExecutor

HOST = "node-a"
OTHER = "node-b"
ENGINE = "vllm-ascend"
IDLE_MB = 3000


class Devices:
    """Implements DeviceSource: `stuck` MB stay in use on a device, `held` MB are those of strangers.

    `others` are further hosts: nothing is in use there.
    """

    def __init__(self, count: int = 4) -> None:
        self.devices = tuple(Device(index=i, card=i // 2, memory_mb=65536, chip="910C") for i in range(count))
        self.stuck: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.broken: str | None = None
        self.blind = False
        self.settle_s = SETTLE_S
        self.source = "npu-smi"
        self.others: tuple[Inventory, ...] = ()
        self.gone: set[str] = set()

    def inventories(self) -> Sequence[Inventory]:
        problem = self.broken
        mine = Inventory(
            host=HOST,
            devices=() if problem else self.devices,
            source="unknown" if problem else self.source,
            settle_s=self.settle_s,
            problem=problem,
        )
        return [found for found in (mine, *self.others) if found.host not in self.gone]

    def use(self, host: str) -> Mapping[int, DeviceUse] | None:
        if host in self.gone:
            raise Unavailable(f"host {host} has left")
        if host != HOST:
            (other,) = [found for found in self.others if found.host == host]
            if other.problem is not None:
                raise Unavailable(other.problem)
            return {device.index: DeviceUse(used_mb=IDLE_MB) for device in other.devices}
        if self.broken is not None:
            raise Unavailable(self.broken)
        if self.blind:
            return None
        extra = {d.index: self.stuck.get(d.index, 0) + self.held.get(d.index, 0) for d in self.devices}
        return {i: DeviceUse(used_mb=IDLE_MB + mb, held_mb=self.held.get(i, 0)) for i, mb in extra.items()}


class World:
    """A store, devices and an executor that outlive their dispatchers; attempts end when the test says so."""

    def __init__(self, count: int = 4, slots: int = 3, **spec: Any) -> None:
        self.clock = ManualClock()
        self.store = InMemoryStudyStore(self.clock.now)
        self.devices = Devices(count)
        self.finish = False
        self.ends: Callable[[TrialJob], TrialOutcome | None] | None = None
        self.executor = ScriptedExecutor(self.play, slots=slots, clock=self.clock)
        self.executor.host_names = (HOST,)
        wanted = {"parallel_trials": 3, "deployment": builders.deployment(devices=2, tensor_parallel=2), **spec}
        self.study = self.store.create_study(builders.study_spec(**wanted), builders.space())
        self.said: list[str] = []

    def play(self, job: TrialJob) -> TrialOutcome | None:
        if self.ends is not None:
            return self.ends(job)
        return builders.outcome(job) if self.finish else None

    def dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self.store,
            self.executor,
            TpeSource(),
            self.clock,
            owner="one",
            report=self.said.append,
            devices=self.devices,
        )

    def desk(self) -> DeviceDesk:
        return DeviceDesk(self.store, self.devices, self.clock)

    @property
    def now(self) -> Study:
        return self.store.study(self.study.id)

    @property
    def given(self) -> list[tuple[int, ...]]:
        return [job.host_devices for job in self.executor.submitted]


def ended(world: World) -> None:
    """The first attempt ran on devices 0 and 1, and is over."""
    placement = world.desk().place(ENGINE, builders.deployment(devices=2), [HOST])
    trial = world.store.add_trial(world.study.id, builders.new_trial())
    world.store.start_attempt(world.study.id, trial.number, "a", placement)
    world.store.cancel_trial(world.study.id, trial.number)
