"""Hosts are asked for their devices at the same time, and nobody waits for one that hangs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from autotune.domain.device import Device, DeviceUse, HostReading, Inventory
from autotune.errors import Unavailable
from tests.contracts.executor_contract import eventually
from workers.devices.asked_hosts import AskedHosts

SOON_S = 0.05  # how long the source under test waits for a host that hangs


class Hosts:
    """Two hosts; `held` ones answer when they are let go, `broken` ones refuse."""

    def __init__(self) -> None:
        self.names = ["node-b", "node-a"]
        self.held: dict[str, threading.Event] = {}
        self.broken: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    def ask(self, host: str) -> HostReading:
        self.asked[host] += 1
        if host in self.held:
            self.held[host].wait(60)
        self.answered[host] += 1
        if host in self.broken:
            raise Unavailable(self.broken[host])
        device = Device(index=0, card=0, memory_mb=65536, chip="910C")
        inventory = Inventory(host=f"{host}.example", devices=(device,), source="npu-smi")
        return HostReading(inventory=inventory, use={0: DeviceUse(used_mb=3000)})


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    hosts = Hosts()
    yield hosts
    for event in hosts.held.values():
        event.set()


def test_all_hosts_by_the_names_of_the_cluster(hosts: Hosts) -> None:
    source = AskedHosts(lambda: hosts.names, hosts.ask, wait_s=60)
    assert [(found.host, found.problem) for found in source.inventories()] == [("node-a", None), ("node-b", None)]
    assert source.use("node-a") == {0: DeviceUse(used_mb=3000)}
    with pytest.raises(Unavailable, match="host node-c is not part of the service now"):
        source.use("node-c")


def test_each_look_is_of_its_own_time(hosts: Hosts) -> None:
    source = AskedHosts(lambda: hosts.names, hosts.ask, wait_s=60)
    source.inventories()

    def asked_again() -> bool:
        source.use("node-a")
        return hosts.asked["node-a"] > 1

    assert eventually(asked_again)


def test_a_host_that_refuses_says_why(hosts: Hosts) -> None:
    hosts.broken["node-b"] = "npu-smi ended with 255"
    source = AskedHosts(lambda: hosts.names, hosts.ask, wait_s=60)
    first, second = source.inventories()
    assert (first.problem, second.problem, second.devices) == (None, "npu-smi ended with 255", ())
    with pytest.raises(Unavailable, match="npu-smi ended with 255"):
        source.use("node-b")


def test_a_host_that_hangs_is_asked_once_and_heard_late(hosts: Hosts) -> None:
    hosts.held["node-b"] = threading.Event()
    source = AskedHosts(lambda: hosts.names, hosts.ask, wait_s=SOON_S)
    for _ in range(3):
        second = source.inventories()[1]
        assert second.problem is not None
        assert "have not answered for" in second.problem
        with pytest.raises(Unavailable, match="have not answered for"):
            source.use("node-b")
    assert hosts.asked["node-b"] == 1
    hosts.held["node-b"].set()
    assert eventually(lambda: source.inventories()[1].problem is None)
    assert hosts.answered["node-b"] >= 1


def test_without_a_cluster_there_are_no_hosts() -> None:
    def none() -> list[str]:
        raise Unavailable("the cluster does not answer")

    source = AskedHosts(none, Hosts().ask)
    with pytest.raises(Unavailable, match="the cluster does not answer"):
        source.inventories()
    with pytest.raises(Unavailable, match="the cluster does not answer"):
        source.use("node-a")


def test_the_own_host_is_read_without_a_cluster() -> None:
    def none() -> list[str]:
        raise Unavailable("the cluster does not answer")

    assert AskedHosts(none, Hosts().ask, own="node-a").use("node-a") == {0: DeviceUse(used_mb=3000)}
