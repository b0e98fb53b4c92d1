"""What the store promises of devices: one attempt each, kept until its memory is back, none from quarantine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from autotune.domain.device import Device, DeviceLease, Inventory, Placement, Quarantine
from autotune.domain.trial import TrialState
from autotune.engine.ports import StudyStore
from autotune.errors import Conflict, NotFound
from tests.builders import failure, new_trial, outcome, verdict
from tests.contracts.trial_steps import LOST, THREADS, study
from tests.fakes import ManualClock

PAIR = Placement(host="node-a", devices=(2, 3), idle_mb=(2900, None))


def start(store: StudyStore, uid: str, placement: Placement | None) -> tuple[int, int]:
    """A running attempt of a new trial, and where it is."""
    study_id = study(store)
    trial = store.add_trial(study_id, new_trial())
    store.start_attempt(study_id, trial.number, uid, placement)
    return study_id, trial.number


def quarantine(clock: ManualClock, device: int = 2, reason: str = "memory is in use") -> Quarantine:
    return Quarantine(host="node-a", device=device, reason=reason, since=clock.now())


def _measured(store: StudyStore, study_id: int, number: int, uid: str) -> None:
    store.finish_trial(study_id, number, 1, outcome(uid), verdict())


def _failed(store: StudyStore, study_id: int, number: int, uid: str) -> None:
    store.finish_trial(study_id, number, 1, outcome(uid, failure=failure()), None)


def _lost(store: StudyStore, study_id: int, number: int, uid: str) -> None:
    store.lose_attempt(study_id, number, 1, LOST)


def _cancelled(store: StudyStore, study_id: int, number: int, uid: str) -> None:
    store.cancel_trial(study_id, number)


class StoreOfDevices:
    """For a `store` fixture whose time is that of `clock`."""

    def test_an_attempt_leases_its_devices(self, store: StudyStore, clock: ManualClock) -> None:
        begun = clock.now()
        start(store, "a", PAIR)
        start(store, "b", None)
        assert list(store.device_leases()) == [
            DeviceLease(host="node-a", device=2, attempt="a", since=begun, idle_mb=2900),
            DeviceLease(host="node-a", device=3, attempt="a", since=begun),
        ]

    def test_all_of_them_or_none(self, store: StudyStore) -> None:
        start(store, "a", PAIR)
        study_id = study(store)
        store.add_trial(study_id, new_trial())
        before = store.last_event()
        for overlapping in ((1, 2), (3,)):
            with pytest.raises(Conflict):
                store.start_attempt(study_id, 0, "b", Placement(host="node-a", devices=overlapping))
        assert store.trial(study_id, 0).state is TrialState.WAITING
        assert store.attempts(study_id, 0) == []
        assert store.last_event() == before
        assert {lease.attempt for lease in store.device_leases()} == {"a"}
        store.start_attempt(study_id, 0, "b", Placement(host="node-b", devices=(2, 3)))
        assert [(lease.host, lease.device) for lease in store.device_leases()] == [
            ("node-a", 2),
            ("node-a", 3),
            ("node-b", 2),
            ("node-b", 3),
        ]

    def test_a_refused_start_leases_nothing(self, store: StudyStore) -> None:
        study_id = study(store)
        store.add_trial(study_id, new_trial())
        store.cancel_trial(study_id, 0)
        with pytest.raises(Conflict):
            store.start_attempt(study_id, 0, "a", PAIR)
        assert list(store.device_leases()) == []

    @pytest.mark.parametrize("end", [_measured, _failed, _lost, _cancelled])
    def test_a_lease_outlives_its_attempt_until_it_is_released(
        self, store: StudyStore, clock: ManualClock, end: Callable[[StudyStore, int, int, str], None]
    ) -> None:
        where = start(store, "a", PAIR)
        start(store, "b", Placement(host="node-a", devices=(0,)))
        clock.advance(5)
        end(store, *where, "a")
        leases = [lease for lease in store.device_leases() if lease.attempt == "a"]
        assert {lease.ended_at for lease in leases} == {clock.now()}
        study_id = study(store)
        store.add_trial(study_id, new_trial())
        with pytest.raises(Conflict):
            store.start_attempt(study_id, 0, "c", PAIR)
        for lease in leases:
            store.release_device(lease)
        store.start_attempt(study_id, 0, "c", PAIR)
        assert [(lease.attempt, lease.ended_at) for lease in store.device_leases()] == [
            ("b", None),
            ("c", None),
            ("c", None),
        ]

    def test_a_late_release_leaves_the_next_lease_alone(self, store: StudyStore) -> None:
        study_id, number = start(store, "a", PAIR)
        old = store.device_leases()[0]
        store.lose_attempt(study_id, number, 1, LOST)
        for lease in store.device_leases():
            store.release_device(lease)
        store.start_attempt(study_id, number, "b", PAIR)
        store.release_device(old)
        assert [lease.attempt for lease in store.device_leases()] == ["b", "b"]

    def test_a_device_in_quarantine_is_not_leased(self, store: StudyStore, clock: ManualClock) -> None:
        store.quarantine_device(quarantine(clock))
        assert list(store.quarantines()) == [quarantine(clock)]
        study_id = study(store)
        store.add_trial(study_id, new_trial())
        with pytest.raises(Conflict):
            store.start_attempt(study_id, 0, "a", PAIR)
        assert store.lift_quarantine("node-a", 2) == quarantine(clock)
        assert list(store.quarantines()) == []
        store.start_attempt(study_id, 0, "a", PAIR)

    def test_a_quarantine_ends_the_lease_of_an_attempt_that_is_over(
        self, store: StudyStore, clock: ManualClock
    ) -> None:
        study_id, number = start(store, "a", PAIR)
        store.quarantine_device(quarantine(clock))
        assert [lease.device for lease in store.device_leases()] == [2, 3], "it still runs"
        store.lose_attempt(study_id, number, 1, LOST)
        store.quarantine_device(quarantine(clock, reason="another"))
        assert [lease.device for lease in store.device_leases()] == [3]
        assert [q.reason for q in store.quarantines()] == ["memory is in use"]

    def test_a_quarantine_that_is_not_there_cannot_be_lifted(self, store: StudyStore, clock: ManualClock) -> None:
        store.quarantine_device(quarantine(clock, device=3))
        for host, device in (("node-a", 2), ("node-b", 3), ("node-a", -1), ("node-a", 2**70)):
            with pytest.raises(NotFound, match=r"is not in quarantine"):
                store.lift_quarantine(host, device)

    def test_a_quarantine_and_its_end_are_events_of_the_study_that_had_the_device(
        self, store: StudyStore, clock: ManualClock
    ) -> None:
        study_id, number = start(store, "a", PAIR)
        store.lose_attempt(study_id, number, 1, LOST)
        before = store.last_event()
        store.quarantine_device(quarantine(clock).model_copy(update={"attempt": "a"}))
        store.quarantine_device(quarantine(clock, reason="another").model_copy(update={"attempt": "a"}))
        assert store.quarantines()[0].attempt == "a"
        store.lift_quarantine("node-a", 2)
        store.quarantine_device(quarantine(clock))  # nobody's: there is no study to tell
        told = store.events(before)
        assert [(e.kind, e.study_id, e.trial_number) for e in told] == [
            ("device_quarantined", study_id, number),
            ("device_released", study_id, number),
        ]
        assert [e.data for e in told] == [{"host": "node-a", "device": 2, "reason": "memory is in use"}] * 2

    def test_inventories_are_kept_by_host(self, store: StudyStore) -> None:
        device = Device(index=0, card=0, memory_mb=65536, chip="910C")
        found = [Inventory(host=host, devices=(device,), source="simulated") for host in ("b", "a")]
        for inventory in found:
            store.put_inventory(inventory)
        assert list(store.inventories()) == [found[1], found[0]]
        ill = Inventory(host="a", devices=(device.model_copy(update={"health": "Alarm"}),), source="npu-smi")
        store.put_inventory(ill)
        assert list(store.inventories()) == [ill, found[0]]

    def test_one_of_many_gets_a_device(self, store: StudyStore) -> None:
        study_id = study(store)
        for _ in range(THREADS):
            store.add_trial(study_id, new_trial())

        def one(n: int) -> bool:
            try:
                store.start_attempt(study_id, n, f"u-{n}", PAIR)
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(THREADS) as pool:
            assert sum(pool.map(one, range(THREADS))) == 1
        assert len({lease.attempt for lease in store.device_leases()}) == 1
