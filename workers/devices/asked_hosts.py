"""The devices of all hosts, asked at the same time, and never waited for longer than the dispatcher can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from autotune.domain.device import DeviceUse, HostReading, Inventory
from autotune.errors import AutotuneError, Unavailable

WAIT_S = 4.0  # npu-smi takes 2 s as a rule; a dispatcher that says nothing for 15 s loses its lease
FRESH_S = 0.5  # one look asks for devices and for their memory: both are of one reading
LATE_S = 60.0  # an answer that nobody could wait for counts so long

UNASKED = "unknown"  # the source of an inventory that could not be read


class _Question:
    """One question to one host, in a thread of its own; it goes on when nobody waits any more."""

    def __init__(self, host: str, ask: Callable[[str], HostReading]) -> None:
        self.begun = time.monotonic()
        self.answered: float | None = None
        self.used = False
        self.reading: HostReading | None = None
        self.problem = ""
        self._thread = threading.Thread(target=self._work, args=(host, ask), name=f"devices-{host}", daemon=True)
        self._thread.start()

    def _work(self, host: str, ask: Callable[[str], HostReading]) -> None:
        try:
            self.reading = ask(host)
        except AutotuneError as error:
            self.problem = str(error)
        finally:
            self.answered = time.monotonic()

    @property
    def outdated(self) -> bool:
        if self.answered is None:
            return False
        return time.monotonic() - self.answered > (FRESH_S if self.used else LATE_S)

    def answer(self, wait_s: float) -> HostReading:
        """Waits until so long after the question. Raises Unavailable for no answer, or for one that is a refusal."""
        self._thread.join(max(0.0, self.begun + wait_s - time.monotonic()))
        if self.answered is None:
            raise Unavailable(f"its devices have not answered for {time.monotonic() - self.begun:.0f} s")
        self.used = True
        if self.reading is None:
            raise Unavailable(self.problem or "its devices could not be read")
        return self.reading


class AskedHosts:
    """Implements `autotune.engine.ports.DeviceSource`.

    `hosts` names them, `ask` reads one and may take its time. `own` is the one that we run on: it can be read when
    nobody knows the others. A host that does not answer is asked once at a time:
    what it says at last is used when it is asked for next. For one thread.
    """

    def __init__(
        self,
        hosts: Callable[[], Sequence[str]],
        ask: Callable[[str], HostReading],
        wait_s: float = WAIT_S,
        own: str | None = None,
    ) -> None:
        self._own = own
        self._hosts = hosts
        self._ask = ask
        self._wait_s = wait_s
        self._questions: dict[str, _Question] = {}

    def inventories(self) -> Sequence[Inventory]:
        """One for each host, in the order of names. Raises Unavailable when it is not known which hosts there are."""
        hosts = sorted(self._hosts())
        questions = {host: self._question(host) for host in hosts}
        return [self._inventory(host, question) for host, question in questions.items()]

    def use(self, host: str) -> Mapping[int, DeviceUse] | None:
        """By device; None for a host that has none. Raises Unavailable for a host that has left or does not answer."""
        if host != self._own and host not in self._hosts():
            raise Unavailable(f"host {host} is not part of the service now")
        return self._question(host).answer(self._wait_s).use

    def _question(self, host: str) -> _Question:
        known = self._questions.get(host)
        if known is None or known.outdated:
            known = self._questions[host] = _Question(host, self._ask)
        return known

    def _inventory(self, host: str, question: _Question) -> Inventory:
        try:
            # The host's own word for its name may be another one than that of the cluster.
            return question.answer(self._wait_s).inventory.model_copy(update={"host": host})
        except Unavailable as error:
            return Inventory(host=host, devices=(), source=UNASKED, problem=error.message)
