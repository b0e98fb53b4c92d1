"""Devices of attempts: leased with the start, taken back with their memory, set aside where it stays in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from autotune.domain.device import SETTLE_S, Device, DeviceUse, Inventory
from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.study import Study, StudyState
from autotune.domain.trial import TrialState
from autotune.engine.device_desk import GONE, ROUND_S, DeviceDesk
from autotune.engine.dispatch import Dispatcher
from autotune.errors import InvalidStudy, Unavailable
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


def test_two_trials_get_cards_of_their_own_and_a_third_waits() -> None:
    world = World(gate_launches=3)
    dispatcher = world.dispatcher()
    for _ in range(20):
        dispatcher.turn()
    assert world.given == [(0, 1), (2, 3)]
    assert [lease.device for lease in world.store.device_leases()] == [0, 1, 2, 3]
    (waiting,) = [t for t in world.store.trials(world.study.id).items if t.state is TrialState.WAITING]
    assert waiting.attempt == 0
    told = "2 devices on whole cards are not free: node-a has 4 (4 leased)"
    assert [line for line in world.said if "waits" in line] == [f"study 1 waits: {told}"]


def test_a_whole_study_on_one_card() -> None:
    world = World(count=2)
    world.finish = True
    dispatcher = world.dispatcher()
    for _ in range(400):
        dispatcher.turn()
        world.clock.advance(1)
        if world.now.state.is_finished:
            break
    assert world.now.state is StudyState.DONE
    assert set(world.given) == {(0, 1)}
    dispatcher.turn()
    assert list(world.store.device_leases()) == []
    assert [found.devices for found in world.store.inventories()] == [world.devices.devices]


def test_leases_of_adopted_attempts_stay_and_those_of_vanished_ones_are_taken_back() -> None:
    world = World(slots=2)
    world.dispatcher().turn()
    first, second = (job.uid for job in world.executor.submitted)
    world.executor.forget(first)
    again = world.dispatcher()
    again.turn()
    kept = {lease.attempt: lease.device for lease in world.store.device_leases()}
    assert second in kept
    assert first not in kept
    assert world.given[:2] == [(0, 1), (2, 3)]
    for _ in range(10):
        again.turn()
    assert world.given[2] == (0, 1)


def test_stopping_leaves_no_lease() -> None:
    world = World()
    dispatcher = world.dispatcher()
    dispatcher.turn()
    assert world.store.device_leases()
    dispatcher.stop()
    assert list(world.store.device_leases()) == []


def test_a_device_is_taken_back_when_its_memory_is_idle_again() -> None:
    world = World()
    ended(world)
    desk = world.desk()
    world.devices.stuck = {0: 513, 1: 512}
    desk.settle()
    assert [lease.device for lease in world.store.device_leases()] == [0]
    world.devices.stuck = {}
    desk.settle()
    assert [lease.device for lease in world.store.device_leases()] == [0], "it looks again a second later"
    world.clock.advance(1)
    desk.settle()
    assert list(world.store.device_leases()) == []
    assert list(world.store.quarantines()) == []


def test_a_device_whose_memory_stays_in_use_is_set_aside() -> None:
    world = World()
    ended(world)
    world.devices.stuck = {1: 40_000}
    world.clock.advance(SETTLE_S)
    world.desk().settle()
    assert list(world.store.device_leases()) == []
    (aside,) = world.store.quarantines()
    assert (aside.host, aside.device) == (HOST, 1)
    assert aside.reason == "43000 MB in use 60 s after attempt a had ended, 3000 MB before it"
    other = world.desk().place(ENGINE, builders.deployment(devices=2), [HOST])
    assert other is not None
    assert other.devices == (2, 3)
    with pytest.raises(Unavailable, match=r"4 devices on whole cards are not free: node-a has 4 \(1 in quarantine\)"):
        world.desk().place(ENGINE, builders.deployment(devices=4), [HOST])
    world.store.lift_quarantine(HOST, 1)
    world.devices.stuck = {}
    assert world.desk().place(ENGINE, builders.deployment(devices=4), [HOST]) is not None


def test_memory_that_cannot_be_read_is_waited_for() -> None:
    world = World()
    ended(world)
    world.devices.broken = "npu-smi does not answer"
    world.desk().settle()
    assert len(world.store.device_leases()) == 2
    world.clock.advance(SETTLE_S)
    world.desk().settle()
    reasons = {q.reason for q in world.store.quarantines()}
    assert reasons == {"its memory could not be read 60 s after attempt a had ended: npu-smi does not answer"}


def test_a_host_that_cannot_tell_gives_its_devices_back_at_once() -> None:
    world = World()
    world.devices.blind = True
    ended(world)
    assert {lease.idle_mb for lease in world.store.device_leases()} == {None}
    world.desk().settle()
    assert list(world.store.device_leases()) == []


def test_what_strangers_use_is_not_leased() -> None:
    world = World()
    world.devices.held = {0: 20_000}
    placement = world.desk().place(ENGINE, builders.deployment(devices=2), [HOST])
    assert placement is not None
    assert (placement.devices, placement.idle_mb) == ((2, 3), (IDLE_MB, IDLE_MB))
    with pytest.raises(Unavailable, match="1 in use by others"):
        world.desk().place(ENGINE, builders.deployment(devices=4), [HOST])


def test_what_is_in_use_by_nobody_that_is_seen_is_not_leased() -> None:
    world = World()
    world.devices.stuck = {0: 20_000}
    placement = world.desk().place(ENGINE, builders.deployment(devices=2), [HOST])
    assert placement is not None
    assert placement.devices == (2, 3)
    assert world.store.inventories()[0].held == (0,)


def test_the_idle_level_is_the_least_that_was_seen() -> None:
    world = World()
    desk = world.desk()
    desk.place(ENGINE, builders.deployment(devices=2), [HOST])
    world.devices.stuck = {0: 500, 1: 500}
    placement = desk.place(ENGINE, builders.deployment(devices=2), [HOST])
    assert placement is not None
    assert placement.idle_mb == (IDLE_MB, IDLE_MB)


def test_where_nothing_is_leased() -> None:
    world = World()
    assert world.desk().place("llama-cpp", builders.deployment(devices=64), [HOST]) is None
    world.devices.devices = ()
    assert world.desk().place(ENGINE, builders.deployment(devices=2), [HOST]) is None


def test_a_study_that_asks_for_more_devices_than_there_are_ends_with_a_sentence() -> None:
    with pytest.raises(InvalidStudy):
        World().desk().place(ENGINE, builders.deployment(devices=5), [HOST])
    world = World(deployment=builders.deployment(devices=8, tensor_parallel=2))
    dispatcher = world.dispatcher()
    for _ in range(3):
        dispatcher.turn()
    assert world.now.state is StudyState.FAILED
    assert world.now.finding == "the study asks for 8 devices; node-a has 4"
    assert world.executor.submitted == []


def beside(devices: Devices, **more: Any) -> None:
    """A second host, as large as the first."""
    devices.others = (Inventory(host=OTHER, devices=devices.devices, source="npu-smi", **more),)


def test_attempts_go_to_the_host_that_has_fewer_of_them_and_the_job_names_it() -> None:
    world = World(gate_launches=3)
    beside(world.devices)
    world.executor.host_names = (HOST, OTHER)
    dispatcher = world.dispatcher()
    for _ in range(5):
        dispatcher.turn()
    places = [(job.host, job.host_devices) for job in world.executor.submitted]
    assert places == [(HOST, (0, 1)), (OTHER, (0, 1)), (HOST, (2, 3))]


def test_a_host_without_room_and_one_where_the_trial_was_lost_come_last() -> None:
    world = World()
    beside(world.devices)
    pair = builders.deployment(devices=2)
    hosts = [HOST, OTHER]

    def where(room: Sequence[str], avoid: Sequence[str] = ()) -> str | None:
        placement = world.desk().place(ENGINE, pair, room, avoid)
        return placement.host if placement else None

    assert where(hosts) == HOST
    assert where(hosts, [HOST]) == OTHER
    assert where([HOST], [HOST]) == HOST
    assert where([OTHER]) == OTHER
    with pytest.raises(Unavailable, match="node-a takes no further trial now; node-b takes no further trial now"):
        where([])


def test_an_attempt_after_a_lost_one_goes_elsewhere() -> None:
    world = World(parallel_trials=1)
    beside(world.devices)
    world.executor.host_names = (HOST, OTHER)
    lost = builders.failure(phase=Phase.LAUNCH, failure_class=FailureClass.INFRASTRUCTURE, host=HOST)
    world.ends = lambda job: builders.outcome(job, failure=lost) if job.host == HOST else None
    dispatcher = world.dispatcher()
    for _ in range(20):
        dispatcher.turn()
        world.clock.advance(1)
    assert [job.host for job in world.executor.submitted] == [HOST, OTHER]


def test_a_host_that_does_not_answer_takes_nothing_and_keeps_what_it_had() -> None:
    world = World()
    beside(world.devices)
    pair = builders.deployment(devices=2)
    desk = world.desk()
    desk.look()
    world.devices.broken = "npu-smi has not answered within 30 s"
    placement = desk.place(ENGINE, pair, [HOST, OTHER])
    assert placement is not None
    assert placement.host == OTHER
    first = world.store.inventories()[0]
    assert (first.devices, first.problem) == (world.devices.devices, "npu-smi has not answered within 30 s")
    with pytest.raises(Unavailable, match="node-a cannot be asked: npu-smi has not answered within 30 s"):
        desk.place(ENGINE, builders.deployment(devices=4), [HOST])
    world.devices.broken = None
    desk.look()
    assert world.store.inventories()[0].problem is None


def test_nobody_is_refused_while_a_host_was_never_seen() -> None:
    world = World()
    world.devices.broken = "it is restarting"
    with pytest.raises(Unavailable, match="node-a cannot be asked: it is restarting"):
        world.desk().place(ENGINE, builders.deployment(devices=400), [HOST])


def test_devices_of_a_lost_host_are_set_aside_until_somebody_lifts_that() -> None:
    world = World()
    beside(world.devices)
    ended(world)
    desk = world.desk()
    desk.look()
    world.devices.gone = {HOST}
    desk.settle()
    assert len(world.store.device_leases()) == 2, "nobody has looked at their memory"
    world.clock.advance(SETTLE_S)
    desk.settle()
    assert list(world.store.device_leases()) == []
    reasons = {q.reason for q in world.store.quarantines()}
    assert reasons == {"its memory could not be read 60 s after attempt a had ended: host node-a has left"}
    desk.look()
    assert {found.host: found.problem for found in world.store.inventories()} == {HOST: GONE, OTHER: None}
    world.devices.gone = set()
    placement = desk.place(ENGINE, builders.deployment(devices=4), [HOST, OTHER])
    assert placement is not None
    assert placement.host == OTHER
    for device in (0, 1):
        world.store.lift_quarantine(HOST, device)
    again = desk.place(ENGINE, builders.deployment(devices=4), [HOST])
    assert again is not None
    assert again.host == HOST


def test_a_lost_host_that_is_back_in_time_is_looked_at_first() -> None:
    world = World()
    ended(world)
    desk = world.desk()
    world.devices.gone = {HOST}
    desk.settle()
    world.devices.gone = set()
    world.devices.stuck = {0: 40_000}
    world.clock.advance(SETTLE_S / 2)
    desk.settle()
    assert [lease.device for lease in world.store.device_leases()] == [0]
    world.devices.stuck = {}
    world.clock.advance(1)
    desk.settle()
    assert list(world.store.device_leases()) == []
    assert list(world.store.quarantines()) == []


def test_a_lost_attempt_keeps_its_devices_until_their_memory_is_back() -> None:
    world = World(parallel_trials=1, count=2)
    dispatcher = world.dispatcher()
    dispatcher.turn()
    (job,) = world.executor.submitted
    lost = builders.failure(phase=Phase.LAUNCH, failure_class=FailureClass.INFRASTRUCTURE, host=HOST)
    world.executor.arrive(builders.outcome(job, failure=lost))
    world.devices.stuck = {0: 30_000, 1: 30_000}
    for _ in range(40):
        dispatcher.turn()
        world.clock.advance(1)
    assert len(world.executor.submitted) == 1, "nothing is launched beside what was left behind"
    world.devices.stuck = {}
    for _ in range(20):
        dispatcher.turn()
        world.clock.advance(1)
    assert len(world.executor.submitted) == 2
    assert list(world.store.quarantines()) == []


def test_a_dispatcher_that_dies_between_start_and_submission_leaks_no_lease() -> None:
    world = World(parallel_trials=1)

    class Killed(BaseException):
        """As SIGKILL: nothing of the dispatcher runs afterwards."""

    def die(job: TrialJob) -> TrialOutcome | None:
        raise Killed

    world.ends = die
    with pytest.raises(Killed):
        world.dispatcher().turn()
    world.ends = None
    (lease, _) = world.store.device_leases()
    world.executor.forget(lease.attempt)
    assert lease.ended_at is None
    again = world.dispatcher()
    for _ in range(20):
        again.turn()
        world.clock.advance(1)
    (_, job) = world.executor.submitted
    assert {held.attempt for held in world.store.device_leases()} == {job.uid} != {lease.attempt}


def test_devices_of_a_study_that_was_cancelled_while_no_dispatcher_looked_are_taken_back() -> None:
    world = World()
    world.dispatcher().turn()
    assert world.store.device_leases()
    world.store.finish_study(world.study.id, StudyState.CANCELLED, "cancelled by the user")
    world.dispatcher().turn()
    assert {job.uid for job in world.executor.submitted} == set(world.executor.cancelled)
    assert list(world.store.device_leases()) == []
    assert all(trial.state.is_finished for trial in world.store.trials(world.study.id).items)


def test_how_long_memory_is_waited_for_is_the_hosts_own_word() -> None:
    world = World()
    world.devices.settle_s = 5
    ended(world)
    world.devices.stuck = {0: 40_000}
    world.clock.advance(5)
    world.desk().settle()
    (aside,) = world.store.quarantines()
    assert aside.reason == "43000 MB in use 5 s after attempt a had ended, 3000 MB before it"
    assert aside.attempt == "a"
    assert world.store.events(0)[-1].kind == "device_quarantined"


def test_a_device_that_the_host_shows_no_more_is_set_aside() -> None:
    world = World()
    ended(world)
    world.devices.devices = world.devices.devices[1:]
    world.clock.advance(SETTLE_S)
    world.desk().settle()
    (aside,) = world.store.quarantines()
    assert (aside.device, aside.reason.rpartition(": ")[2]) == (0, "the host does not show it")


def test_what_strangers_hold_and_what_is_ill_is_shown() -> None:
    world = World()
    world.devices.held = {2: 20_000}
    ill = world.devices.devices[0].model_copy(update={"health": "Alarm"})
    world.devices.devices = (ill, *world.devices.devices[1:])
    dispatcher = world.dispatcher()
    dispatcher.turn()
    (found,) = world.store.inventories()
    assert found.held == (2,)
    assert found.devices[0].health == "Alarm"
    assert world.executor.submitted == []
    told = "2 devices on whole cards are not free: node-a has 4 (1 in use by others, 1 not healthy)"
    assert [line for line in world.said if "waits" in line] == [f"study 1 waits: {told}"]


def test_simulated_devices_do_not_count_beside_real_ones() -> None:
    world = World()
    world.devices.source = "simulated"
    beside(world.devices)
    placement = world.desk().place(ENGINE, builders.deployment(devices=2), [HOST, OTHER])
    assert placement is not None
    assert placement.host == OTHER
    world.devices.others = ()
    alone = world.desk().place(ENGINE, builders.deployment(devices=2), [HOST])
    assert alone is not None


def test_hosts_are_looked_at_without_a_trial_that_asks() -> None:
    world = World(deployment=builders.deployment(devices=2, tensor_parallel=2))
    world.store.finish_study(world.study.id, StudyState.CANCELLED, "cancelled by the user")
    dispatcher = world.dispatcher()
    dispatcher.turn()
    assert [found.host for found in world.store.inventories()] == [HOST]
    world.devices.broken = "gone for a moment"
    dispatcher.turn()
    assert world.store.inventories()[0].problem is None
    world.clock.advance(ROUND_S)
    dispatcher.turn()
    assert world.store.inventories()[0].problem == "gone for a moment"
