"""Hosts over HTTP: devices, leases, quarantines and their end."""

from __future__ import annotations

from datetime import UTC, datetime

from autotune.domain.device import Device, Inventory, Placement, Quarantine
from tests import builders
from tests.api.running_api import RunningApi

SINCE = datetime(2030, 1, 1, tzinfo=UTC)


def filled(api: RunningApi) -> None:
    """A host of two cards: an attempt on device 0, one that is over on 1, a quarantine on 2."""
    devices = tuple(Device(index=i, card=i // 2, memory_mb=65536, chip="910C") for i in range(4))
    api.store.put_inventory(Inventory(host="node-a", devices=devices, source="npu-smi"))
    api.store.put_inventory(
        Inventory(host="node-b", devices=devices[:1], source="npu-smi", held=(0,), settle_s=5, problem="it hangs")
    )
    study = api.create()
    for device, uid in ((0, "runs"), (1, "over")):
        trial = api.store.add_trial(study.id, builders.new_trial())
        api.store.start_attempt(study.id, trial.number, uid, Placement(host="node-a", devices=(device,)))
    api.store.cancel_trial(study.id, 1)
    aside = Quarantine(host="node-a", device=2, reason="40000 MB in use", since=SINCE, attempt="over")
    api.store.quarantine_device(aside)


def test_there_are_none_before_a_dispatcher_has_looked(api: RunningApi) -> None:
    assert api.get("/api/v1/hosts").json() == []


def test_devices_with_their_leases_and_quarantines(api: RunningApi) -> None:
    filled(api)
    host, other = api.get("/api/v1/hosts").json()
    assert (host["host"], host["source"], host["problem"], host["settle_s"]) == ("node-a", "npu-smi", None, 60)
    assert (other["problem"], other["settle_s"]) == ("it hangs", 5)
    assert [(d["held"], d["free"]) for d in other["devices"]] == [(True, False)]
    first, over, aside, free = host["devices"]
    assert (first["lease"]["attempt"], first["lease"]["ended_at"]) == ("runs", None)
    assert over["lease"]["ended_at"] is not None
    assert aside["quarantine"] == {
        "reason": "40000 MB in use",
        "since": "2030-01-01T00:00:00Z",
        "attempt": "over",
    }
    assert [d["free"] for d in host["devices"]] == [False, False, False, True]
    assert free == {
        "index": 3,
        "card": 1,
        "memory_mb": 65536,
        "chip": "910C",
        "health": "OK",
        "held": False,
        "free": True,
        "lease": None,
        "quarantine": None,
    }


def test_a_quarantine_is_lifted_once(api: RunningApi) -> None:
    filled(api)
    answer = api.client.post("/api/v1/hosts/node-a/devices/2/release")
    assert answer.status_code == 200
    assert answer.json()["reason"] == "40000 MB in use"
    assert api.get("/api/v1/hosts").json()[0]["devices"][2]["quarantine"] is None
    kinds = [event.kind for event in api.store.events(0)]
    assert kinds[-2:] == ["device_quarantined", "device_released"]
    again = api.client.post("/api/v1/hosts/node-a/devices/2/release")
    assert (again.status_code, again.json()["detail"]) == (404, "device 2 of host node-a is not in quarantine")
    assert api.client.post("/api/v1/hosts/node-a/devices/-1/release").status_code == 422
