"""Where on a Ray cluster something runs: the nodes of a host, where an attempt may go, a call on one node.

A host is called by its name or by Ray's id of the node. Several nodes on one machine share its name.
For `ray_executor`, which sets Ray's environment before it imports this.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import In, NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, NotIn

from autotune.domain.job import TrialJob
from autotune.errors import AutotuneError, Unavailable

T = TypeVar("T")
Node = Mapping[str, Any]  # as `ray.nodes()` gives it

_NODE_LABEL = "ray.io/node-id"  # Ray gives it to every node
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def named(nodes: Sequence[Node], hosts: Collection[str]) -> list[str]:
    """Ray's ids of the nodes of these hosts."""
    return [node["NodeID"] for node in nodes if node["NodeID"] in hosts or node["NodeManagerHostname"] in hosts]


def placing(job: TrialJob, nodes: Sequence[Node]) -> dict[str, Any]:
    """Options of the actor: on the host where devices are leased for it, else rather not where the trial was lost.

    Raises Unavailable when that host is not in the cluster.
    """
    if job.host is not None:
        there = named(nodes, (job.host,))
        if not there:
            raise Unavailable(f"host {job.host} is not in the cluster")
        only = cast(Any, In)(*there)  # Ray's types leave the arguments out, here and below
        return {"scheduling_strategy": NodeLabelSchedulingStrategy(hard={_NODE_LABEL: only})}
    avoided = named(nodes, job.avoid_hosts)
    if not avoided:
        return {}
    elsewhere = cast(Any, NotIn)(*avoided)
    return {"scheduling_strategy": NodeLabelSchedulingStrategy(hard={}, soft={_NODE_LABEL: elsewhere})}


def hosts_with_room(nodes: Sequence[Node], slots_resource: str, taken: Counter[str | None]) -> list[str]:
    """Hosts with a free slot. `taken` counts attempts by host; those under None may be on any of them."""
    slots: Counter[str] = Counter()
    for node in nodes:
        slots[node["NodeManagerHostname"]] += int(node["Resources"][slots_resource])
    return sorted(host for host, count in slots.items() if count > taken[host] + taken[None])


def run_on(node: str, function: Callable[..., T], *arguments: Any, timeout_s: float) -> T:
    """What an importable function gives on that node.

    Raises Unavailable when the node does not answer in time or the function raises.
    """
    try:
        return cast(T, ray.get(begin_on(node, function, *arguments), timeout=timeout_s))
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else None
        raise Unavailable(cause.message if isinstance(cause, AutotuneError) else reason(error)) from error


def begin_on(node: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Ray's promise of what it gives there, in a task that is never repeated and takes no slot."""
    options: dict[str, Any] = {
        "num_cpus": 0,
        "max_retries": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
    }
    return ray.remote(function).options(**options).remote(*arguments)


def reason(error: Exception) -> str:
    """The sentence of Ray's page-long messages that says why: the last one."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no reason given'}"
