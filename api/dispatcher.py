"""The dispatcher process: holds the search and the executor, never serves HTTP.

A Ray driver ends its own process 60 s after the cluster's head is gone; so it must not live in the api.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import structlog

from api.data_directory import DataDirectory
from api.logs import log_to_stderr
from autotune.domain.device import HostReading
from autotune.engine.clock import SystemClock
from autotune.engine.dispatch import LEASE, LEASE_S, Dispatcher
from autotune.engine.ports import DeviceSource, StudyStore, TrialExecutor
from autotune.errors import Unavailable
from autotune.proposers.tpe import TpeSource
from autotune.storage.sql_store import open_store
from workers.devices.asked_hosts import AskedHosts
from workers.devices.npu_smi import TIMEOUT_S
from workers.devices.this_host import ThisHost, read_host
from workers.local_executor import LocalExecutor
from workers.marked_processes import is_running, process_stat

log = structlog.get_logger("dispatcher")

RETRY_S = 1.0
READING_S = 2 * TIMEOUT_S + 30.0  # npu-smi twice, and the start of a Ray worker


def executor_for(kind: str, data: DataDirectory, slots: int, ray_address: str | None) -> TrialExecutor:
    """The executor by its name; `ray` needs the address of a running head."""
    if kind == "local":
        return LocalExecutor(data.attempts, data.templates, slots)
    if kind == "virtual":
        from workers.virtual_executor import VirtualExecutor  # noqa: PLC0415  the simulator is no part of a real study

        return VirtualExecutor(data.attempts, data.templates, slots)
    from workers.ray_executor import RayExecutor  # noqa: PLC0415  importing ray takes two seconds

    if ray_address is None:
        raise Unavailable("the ray executor needs --ray-address")
    return RayExecutor(ray_address, data.attempts, data.templates)


def devices_for(kind: str, data: DataDirectory, executor: TrialExecutor) -> DeviceSource | None:
    """Who knows the devices of the hosts that the executor uses; None on virtual time, where nothing takes any.

    Raises InvalidRequest for a `host.yaml` of this host that is wrong.
    """
    if kind == "virtual":
        return None
    here = ThisHost(data.root, data.attempts)
    if kind == "local":
        return AskedHosts(lambda: [here.name], lambda _: here.reading())
    from workers.ray_executor import RayExecutor  # noqa: PLC0415  as above

    assert isinstance(executor, RayExecutor)
    root, attempts = data.root.resolve(), data.attempts.resolve()

    def ask(host: str) -> HostReading:
        if host == here.name:  # by the cluster's name too: no need to go through it, which may be what has failed
            return here.reading()
        found = executor.on_host(host, read_host, root, attempts, timeout_s=READING_S)
        return HostReading.model_validate_json(found)

    return AskedHosts(executor.hosts, ask, own=here.name)


def owner_name() -> str:
    """Host, pid and start time: enough for a successor on this host to see that we are gone."""
    stat = process_stat(os.getpid())
    return f"{socket.gethostname()}/{os.getpid()}/{stat.started if stat else 0}"


def is_dead(owner: str) -> bool:
    """Whether the owner of the lease ran on this host and runs no more; False for another host's."""
    host, pid, started = owner.rsplit("/", 2)
    return host == socket.gethostname() and not is_running(int(pid), int(started))


def run(dispatcher: Dispatcher, store: StudyStore, stopping: threading.Event) -> None:
    """Turn until told to stop; a lost lease or an absent store is waited for."""
    waiting = False
    while not stopping.is_set():
        try:
            if not dispatcher.hold():
                owner = store.lease_owner(LEASE)
                if owner is not None and is_dead(owner):
                    store.release_lease(LEASE, owner)
                    continue
                if not waiting:
                    log.info("another dispatcher holds the lease; waiting", at_most_s=LEASE_S)
                waiting = True
                stopping.wait(RETRY_S)
                continue
            if waiting:
                log.info("took over the lease")
                waiting = False
            dispatcher.turn()
        except Unavailable as error:
            log.warning("waiting", reason=error.message)
            stopping.wait(RETRY_S)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m api.dispatcher", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--database", help="SQLAlchemy URL; default: SQLite in the data directory")
    parser.add_argument("--executor", choices=["ray", "local", "virtual"], default="ray")
    parser.add_argument("--ray-address")
    parser.add_argument("--slots", type=int, default=1, help="trials at a time on this host")
    args = parser.parse_args()
    log_to_stderr()
    data = DataDirectory(args.data).prepare()
    stopping = threading.Event()
    store = open_store(args.database or data.database_url)
    executor = executor_for(args.executor, data, args.slots, args.ray_address)
    dispatcher = Dispatcher(
        store,
        executor,
        TpeSource(),
        SystemClock(),
        owner=owner_name(),
        report=log.info,
        devices=devices_for(args.executor, data, executor),
    )
    # After the executor is made: connecting to Ray installs handlers of its own, which end the process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    log.info("dispatcher ready", executor=args.executor, slots=args.slots, pid=os.getpid())
    run(dispatcher, store, stopping)
    dispatcher.stop()
    log.info("dispatcher stopped")
    sys.exit(0)


if __name__ == "__main__":
    main()
