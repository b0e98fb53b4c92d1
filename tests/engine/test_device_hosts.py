"""Devices of several hosts, of hosts and attempts that are lost, of dispatchers that die."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from autotune.domain.device import SETTLE_S, Inventory
from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.study import StudyState
from autotune.engine.device_desk import GONE, ROUND_S
from autotune.errors import Unavailable
from tests import builders
from tests.engine.device_world import ENGINE, HOST, OTHER, Devices, World, ended


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
