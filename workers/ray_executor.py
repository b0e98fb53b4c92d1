"""Attempts as Ray actors. This module and `ray_places` are the only ones that import Ray.

One named, detached actor per attempt. Creating it is the submission, since its constructor starts the
attempt: Ray refuses a second actor of that name, never restarts one, and keeps it when the dispatcher dies.
The attempt runs in a thread of the actor's process, and its supervisor holds a pipe to that process, so that
whatever ends the actor ends the servers. The actor keeps the outcome until it is acknowledged.

Ray ends this process 60 s after the head has gone ("Failed to connect to GCS"): run it under a supervisor.
"""

from __future__ import annotations

import json
import os
import pkgutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from autotune.domain.failure import Phase
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.errors import Unavailable
from workers.attempt_end import LIMIT_S, end_attempt
from workers.attempt_files import AlreadyStarted, AttemptFiles
from workers.code_identity import code_mismatch, code_version
from workers.host_templates import HostTemplates
from workers.lost_attempt import lost_without_folder

os.environ["RAY_AUTH_MODE"] = "token"  # read when ray is imported, not when it connects
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"] = "1"

import ray
from ray.exceptions import ActorAlreadyExistsError, RayError
from ray.util import list_named_actors

from workers.ray_places import begin_on, hosts_with_room, named, placing, reason, run_on

T = TypeVar("T")
RUN_ATTEMPT = "workers.attempt:run_attempt"

PLACEMENT_S = 120.0  # an actor that no node takes stays pending for ever without a word
LEFTOVER_S = 10.0  # a dispatcher adopts before it asks for capacity, and its store knows what runs
WAITING = "waiting"  # the actor's threads for calls that wait for the outcome
_CONNECT_S = 2.0
_QUESTION_S = 2.0  # an idle actor answers in 2 ms
_POLL_S = 0.5


class AttemptActor:
    """One attempt. `outcome` waits for its end; the other methods answer at once."""

    def __init__(self, job_json: str, attempts_root: str, templates_dir: str, expected_version: str, run: str) -> None:
        self._ended = threading.Event()
        self._outcome_json: str | None = None
        arguments = (job_json, Path(attempts_root), Path(templates_dir), expected_version, run)
        threading.Thread(target=self._work, args=arguments, name="attempt", daemon=True).start()

    def _work(self, job_json: str, attempts_root: Path, templates_dir: Path, expected_version: str, run: str) -> None:
        try:
            job = TrialJob.model_validate_json(job_json)
            outcome = _run_here(job, attempts_root, templates_dir, expected_version, run)
            self._outcome_json = outcome.model_dump_json()
        finally:
            self._ended.set()

    def node(self) -> str:
        """Ray's id of the node that runs the attempt, and the name of its host."""
        return f"{ray.get_runtime_context().get_node_id()} {socket.gethostname()}"

    def has_ended(self) -> bool:
        return self._ended.is_set()

    def outcome(self) -> str:
        """The `TrialOutcome` as JSON."""
        self._ended.wait()
        if self._outcome_json is None:
            raise RuntimeError("the attempt broke off; the worker's log on that node says why")
        return self._outcome_json


def _run_here(job: TrialJob, root: Path, templates_dir: Path, expected_version: str, run: str) -> TrialOutcome:
    mismatch = code_mismatch(expected_version)
    if mismatch is not None:
        return lost_without_folder(job.uid, Phase.PLACE, mismatch, socket.gethostname())
    files = AttemptFiles(root, job.uid)
    files.write_job(job)
    context = ray.get_runtime_context()
    where = {"node_id": context.get_node_id(), "host": socket.gethostname(), "pid": os.getpid()}
    (files.folder / "ray.json").write_text(json.dumps(where), encoding="utf-8")
    try:
        outcome: TrialOutcome = pkgutil.resolve_name(run)(job, root, HostTemplates(templates_dir))
    except AlreadyStarted as error:
        return files.outcome() or lost_without_folder(job.uid, Phase.PLACE, error.message)
    if files.outcome() is None:
        files.write_outcome(outcome)
    return outcome


@dataclass
class _Flight:
    """One unacknowledged attempt. `placed`, `ended`: pending answers of the actor; once it is `lost`, of its node."""

    actor: Any
    placed: Any = None
    ended: Any = None
    lost: Exception | None = None
    node: str | None = None
    host: str | None = None
    since: float = field(default_factory=time.monotonic)
    outcome: TrialOutcome | None = None


class RayExecutor:
    """A `TrialExecutor` over a Ray cluster. Thread-safe.

    A node offers `slots_resource` for as many attempts as it takes at once. `attempts_root` and
    `templates_dir` are paths on every node. Without `token_file`, RAY_AUTH_TOKEN_PATH names the file.
    `run_attempt` is what an actor calls, as `module:function`. Raises Unavailable when the cluster cannot be
    reached.
    """

    def __init__(
        self,
        address: str,
        attempts_root: Path,
        templates_dir: Path,
        token_file: Path | None = None,
        slots_resource: str = "slot",
        namespace: str = "autotune",
        run_attempt: str = RUN_ATTEMPT,
        placement_s: float = PLACEMENT_S,
        leftover_s: float = LEFTOVER_S,
    ) -> None:
        self._address = address
        self._root = attempts_root.resolve()
        self._templates = templates_dir.resolve()
        self._slots_resource = slots_resource
        self._namespace = namespace
        self._run_attempt = run_attempt
        self._placement_s = placement_s
        self._leftover_s = leftover_s
        self._flights: dict[str, _Flight] = {}
        self._strangers: dict[str, float] = {}
        self._lock = threading.RLock()
        self._connected_here = False
        if token_file is not None:
            os.environ["RAY_AUTH_TOKEN_PATH"] = str(token_file.resolve())
        with self._cluster():
            if not ray.is_initialized():
                ray.init(address=address, namespace=namespace, log_to_driver=False, configure_logging=False)
                self._connected_here = True

    def capacity(self) -> int:
        with self._lock, self._cluster():
            slots = sum(node["Resources"][self._slots_resource] for node in self._nodes())
            return max(0, int(slots) - len(self._flights) - self._others())

    def hosts(self) -> Sequence[str]:
        with self._cluster():
            return sorted({node["NodeManagerHostname"] for node in self._nodes()})

    def hosts_with_room(self) -> Sequence[str]:
        if self.capacity() == 0:
            return ()
        with self._lock, self._cluster():
            taken = Counter(flight.host for flight in self._flights.values() if flight.outcome is None)
            return hosts_with_room(self._nodes(), self._slots_resource, taken)

    def on_host(self, host: str, function: Callable[..., T], *arguments: Any, timeout_s: float) -> T:
        """What an importable function gives when it is called on that host, which may be any node's name or id.

        Raises Unavailable when the host is not in the cluster, does not answer in time, or the function raises.
        """
        with self._cluster():
            nodes = named(self._nodes(), (host,))
            if not nodes:
                raise Unavailable(f"host {host} is not in the cluster")
            return run_on(nodes[0], function, *arguments, timeout_s=timeout_s)

    def submit(self, job: TrialJob) -> None:
        with self._lock:
            if job.uid in self._flights:
                return
            with self._cluster():
                actor = self._find(job.uid)
            if actor is None:
                if self.capacity() == 0:
                    raise Unavailable("all slots of the cluster are taken")
                actor = self._create(job)
            self._watch(job.uid, actor)
            self._flights[job.uid].host = job.host

    def adopt(self, job: TrialJob) -> bool:
        with self._lock:
            if job.uid in self._flights:
                return True
            with self._cluster():
                actor = self._find(job.uid)
                if actor is not None:
                    self._watch(job.uid, actor)
                    return True
            spooled = self._spooled(job.uid)
            if spooled is None:
                return False
            self._flights[job.uid] = _Flight(actor=None, outcome=spooled)
            return True

    def collect(self, timeout_s: float) -> Sequence[TrialOutcome]:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                flights = dict(self._flights)
            due = {uid: flight for uid, flight in flights.items() if flight.outcome is None}
            if due:
                self._look(due)
            arrived = [flight.outcome for flight in flights.values() if flight.outcome is not None]
            left_s = deadline - time.monotonic()
            if arrived or left_s <= 0:
                return arrived
            if due:
                with self._cluster():
                    ray.wait([flight.ended for flight in due.values()], timeout=min(left_s, _POLL_S))
            else:
                time.sleep(left_s)

    def acknowledge(self, uid: str) -> None:
        """Forget the attempt; its actor goes and frees the slot. The folder on its host stays."""
        with self._lock:
            flight = self._flights.pop(uid, None)
            if flight is not None and flight.actor is not None:
                self._kill(flight.actor)

    def cancel(self, uid: str) -> None:
        """End the attempt and all its processes. Takes 2 s as a rule, and 25 s at most.

        With the cluster's head, its attempts have gone too.
        """
        with self._lock, suppress(Unavailable):
            flight = self._flights.pop(uid, None)
            with self._cluster():
                if flight is None:
                    actor = self._find(uid)
                    flight = None if actor is None else self._ask(actor)
                if flight is None or flight.actor is None:
                    return
                ray.wait([flight.placed], timeout=_QUESTION_S)
                self._note_place(flight)
            self._kill(flight.actor)
            if flight.node is not None:
                self._make_sure(uid, flight.node)

    def close(self) -> None:
        """Attempts in flight go on: their actors are detached."""
        with self._lock:
            self._flights.clear()
            if self._connected_here:
                ray.shutdown()
                self._connected_here = False

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        """Turns Ray's errors into Unavailable. Asks first whether the head is there: Ray would wait 60 s."""
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
            yield
        except (RayError, OSError, RuntimeError, ValueError) as error:
            raise Unavailable(f"the Ray cluster at {self._address} does not answer: {reason(error)}") from error

    def _find(self, uid: str) -> Any | None:
        with suppress(ValueError):  # Ray's word for a name that nobody has
            return ray.get_actor(uid, namespace=self._namespace)
        return None

    def _create(self, job: TrialJob) -> Any:
        # A group of its own for waiting calls: those of dead dispatchers must not keep the quick ones from being
        # answered. Ray's types leave the argument out.
        actor_class = cast(Any, ray).remote(concurrency_groups={WAITING: 4})(AttemptActor)
        with self._cluster():
            where = placing(job, self._nodes())
        options = actor_class.options(
            name=job.uid,
            namespace=self._namespace,
            lifetime="detached",
            max_restarts=0,
            max_task_retries=0,
            num_cpus=0,
            resources={self._slots_resource: 1},
            max_concurrency=4,
            **where,
        )
        places = str(self._root), str(self._templates)
        try:
            with self._cluster(), suppress(ActorAlreadyExistsError):
                return options.remote(job.model_dump_json(), *places, code_version(), self._run_attempt)
            with self._cluster():
                return ray.get_actor(job.uid, namespace=self._namespace)
        except Unavailable:
            # Who is told so starts another attempt: this one must not run beside it.
            with suppress(Unavailable), self._cluster():
                actor = self._find(job.uid)
                if actor is not None:
                    self._kill(actor)
            raise

    def _nodes(self) -> list[dict[str, Any]]:
        """The living nodes that take attempts."""
        nodes = cast(Any, ray).nodes()  # Ray leaves it without types
        return [node for node in nodes if node["Alive"] and node["Resources"].get(self._slots_resource)]

    def _watch(self, uid: str, actor: Any) -> None:
        self._flights[uid] = self._ask(actor)
        self._strangers.pop(uid, None)

    def _ask(self, actor: Any) -> _Flight:
        return _Flight(
            actor=actor,
            placed=actor.node.remote(),
            ended=actor.outcome.options(concurrency_group=WAITING).remote(),
        )

    def _look(self, flights: Mapping[str, _Flight]) -> None:
        """Note what has happened to attempts that have no outcome yet; never waits."""
        with self._cluster():
            refs = [flight.ended for flight in flights.values()]
            ended = set(ray.wait(refs, num_returns=len(refs), timeout=0)[0])
        for uid, flight in flights.items():
            self._note_place(flight)
            if flight.ended in ended or (flight.lost and time.monotonic() - flight.since > LIMIT_S):
                flight.outcome = self._fetch(uid, flight)
            elif flight.node is None and not flight.lost and time.monotonic() - flight.since > self._placement_s:
                self._kill(flight.actor)
                text = f"no node took the attempt within {self._placement_s:.0f} s"
                flight.outcome = lost_without_folder(uid, Phase.PLACE, text)

    def _note_place(self, flight: _Flight) -> None:
        if flight.node is None and flight.placed is not None and ray.wait([flight.placed], timeout=0)[0]:
            with suppress(RayError):  # its outcome will tell
                flight.node, _, flight.host = ray.get(flight.placed).partition(" ")

    def _fetch(self, uid: str, flight: _Flight) -> TrialOutcome | None:
        """None when the worker was lost just now: the outcome comes once nothing of the attempt is left."""
        left = None
        try:
            if flight.lost is None:
                return TrialOutcome.model_validate_json(ray.get(flight.ended))
            left = ray.get(flight.ended, timeout=0)
        except (RayError, ValidationError) as error:
            if flight.lost is None:
                self._kill(flight.actor)  # one that is only out of reach must not go on beside its successor
                flight.lost, flight.since = error, time.monotonic()
                if flight.node is not None and self._spooled(uid) is None:
                    with self._cluster():
                        flight.ended = begin_on(flight.node, end_attempt, self._root, uid)
                    return None
        phase = Phase.PLACE if flight.node is None else Phase.LAUNCH
        summary = f"the worker was lost: {reason(flight.lost)}" + (f"; processes {left} do not end" if left else "")
        return self._spooled(uid) or lost_without_folder(uid, phase, summary, flight.host)

    def _spooled(self, uid: str) -> TrialOutcome | None:
        """What the attempt wrote before its actor ended, where that was on this host."""
        with suppress(ValidationError):
            return AttemptFiles(self._root, uid).outcome()
        return None

    def _kill(self, actor: Any) -> None:
        with suppress(RayError, Unavailable), self._cluster():
            ray.kill(actor, no_restart=True)

    def _make_sure(self, uid: str, node: str) -> None:
        """Wait on the attempt's node until nothing of it is left; in vain when the node has gone."""
        with suppress(Unavailable), self._cluster():
            run_on(node, end_attempt, self._root, uid, timeout_s=LIMIT_S)

    def _others(self) -> int:
        """How many actors hold a slot and are not ours; those that ended and that nobody adopts are released.

        A dispatcher that dies between storing an outcome and acknowledging it leaves one.
        """
        now = time.monotonic()
        names = {name for name in list_named_actors() if name not in self._flights}
        self._strangers = {name: self._strangers.get(name, now) for name in names}
        for name, since in list(self._strangers.items()):
            actor = self._find(name) if now - since > self._leftover_s else None
            if actor is None:
                continue
            with suppress(RayError):
                if ray.get(actor.has_ended.remote(), timeout=_QUESTION_S):
                    self._kill(actor)
                    del self._strangers[name]
        return len(self._strangers)
