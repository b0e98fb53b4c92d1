"""Devices of attempts: leased with the start, taken back with their memory, set aside where it stays in use."""

from __future__ import annotations

import pytest

from autotune.domain.device import SETTLE_S
from autotune.domain.study import StudyState
from autotune.domain.trial import TrialState
from autotune.errors import InvalidStudy, Unavailable
from tests import builders
from tests.engine.device_world import ENGINE, HOST, IDLE_MB, World, ended


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


def test_a_service_that_stops_waits_a_moment_for_memory_and_no_longer() -> None:
    world = World()
    ended(world)
    desk = world.desk()
    world.devices.stuck = {0: 40_000, 1: 40_000}
    desk.settle()
    begun = world.clock.now()
    desk.give_back(3.0)
    assert len(world.store.device_leases()) == 2
    assert 3.0 <= (world.clock.now() - begun).total_seconds() < 4.0
    world.devices.stuck = {}
    desk.give_back(3.0)
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
