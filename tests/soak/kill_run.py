"""Kills at random moments while studies run, and what became of every attempt that was hit."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import httpx

from tests.e2e.running_service import RunningService
from tests.soak.attempt_watch import AttemptWatch
from tests.soak.kill_study import STUDY
from tests.soak.records import Records
from tests.soak.verdict import Kill, Limits, Verdict, rights, strike
from tests.soak.victims import Moment, Victim, find
from workers.marked_processes import marked

Target = tuple[Victim, Moment]

TICK_S = 0.004
STUDY_S = 1.0  # between two looks at whether a study runs
WAIT_S = 300.0  # without an attempt for so long, nothing works any more
DELAY_S = 0.25  # the kill comes up to this long after the moment has begun
REPORTING_DELAY_S = 0.1
ORDER = tuple(Moment)


def deck(kills: int, rng: random.Random) -> list[Target]:
    """Every victim in every moment equally often, in random order."""
    dealt: list[Target] = []
    while len(dealt) < kills:
        pairs = list(product(Victim, Moment))
        rng.shuffle(pairs)
        dealt += pairs
    return dealt[:kills]


class KillRun:
    """One service, one trial at a time, one kill per attempt."""

    def __init__(
        self,
        service: RunningService,
        targets: Sequence[Target],
        rng: random.Random,
        limits: Limits | None = None,
        say: Callable[[Kill], None] = lambda _: None,
    ) -> None:
        self._service = service
        self._attempts = service.data / "attempts"
        self._records = Records(service.data)
        self._targets = list(targets)
        self._rng = rng
        self._limits = limits or Limits()
        self._say = say
        self._pending: list[Verdict] = []
        self._seen: set[str] = set()
        self._studies = 0
        self._study_asked = 0.0
        self.kills: list[Kill] = []

    def run(self) -> None:
        """Until every target was hit and every verdict is there."""
        while self._targets:
            victim, moment = self._targets[0]
            if self._hit(victim, moment):
                del self._targets[:1]
            else:
                self._rng.shuffle(self._targets)
        self._wait_until(lambda: not self._pending)

    def stop_soon(self) -> None:
        """No further kills; those that were made get their verdicts."""
        self._targets.clear()

    def finish(self) -> dict[str, list[str]]:
        """Cancel what runs; gives what is wrong with the records of all trials afterwards."""
        self._wait_until(self._cancelled)
        deadline = time.monotonic() + self._limits.end_s
        while time.monotonic() < deadline and (self._records.lost() or self._all_leases()):
            time.sleep(0.2)
        found = {"lost": list(self._records.lost()), "doubled": list(self._records.doubled())}
        found["devices_stuck"] = [f"device {device} of attempt {uid}" for device, uid in self._all_leases()]
        deadline = time.monotonic() + self._limits.clean_s
        while (left := marked(str(self._attempts.resolve()))) and time.monotonic() < deadline:
            time.sleep(0.1)
        found["processes_left"] = [f"process {pid} of attempt {uid}" for pid, uid in left.items()]
        return found

    @property
    def trials(self) -> int:
        return self._records.trials()

    def _all_leases(self) -> Sequence[tuple[int, str]]:
        return [(device, uid) for device, uid in self._records.rows("SELECT device, uid FROM device_lease")]

    # --- one kill ---------------------------------------------------------------------------

    def _hit(self, victim: Victim, moment: Moment) -> bool:
        """False when the attempt was over, or past the moment, before the victim could be found."""
        watch = AttemptWatch(self._next_attempt())
        for _ in self._ticks():
            if not self._targets:
                break
            now = watch.moment()
            if (watch.has_outcome and moment is not Moment.REPORTING) or self._is_over(watch):
                break
            if now is not moment:
                if now is not None and ORDER.index(now) > ORDER.index(moment):
                    break
                continue
            self._delay(REPORTING_DELAY_S if moment is Moment.REPORTING else DELAY_S)
            pid = find(victim, watch.folder, self._service)
            now = watch.moment()
            if pid is None or now is None or not strike(pid, signal.SIGKILL):
                continue
            right = rights(victim, now, (watch.folder / "samples.json").exists())
            kill = Kill(len(self.kills) + 1, victim, now, watch.uid, pid, right)
            self.kills.append(kill)
            self._pending.append(Verdict(kill, watch, self._records, self._limits))
            return True
        watch.close()
        return False

    def _is_over(self, watch: AttemptWatch) -> bool:
        return watch.has_outcome and self._records.end(watch.uid) is not None

    def _delay(self, most_s: float) -> None:
        time.sleep(self._rng.uniform(0, most_s))

    def _next_attempt(self) -> Path:
        """The next one that begins, so that every moment of it is still to come."""
        for _ in self._ticks():
            for folder in self._attempts.glob("*"):
                if folder.name not in self._seen and (folder / "started").exists():
                    self._seen.add(folder.name)
                    if not (folder / "outcome.json").exists():
                        return folder
        raise AssertionError("unreachable: the ticks raise when they run out")

    # --- in between -------------------------------------------------------------------------

    def _ticks(self) -> Iterator[None]:
        """Looks at everything that is pending in between. Raises AssertionError when nothing happens for long."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            self._attend()
            yield
            time.sleep(TICK_S)
        raise AssertionError(f"nothing happened within {WAIT_S:.0f} s; attempts so far: {sorted(self._seen)[-3:]}")

    def _attend(self) -> None:
        for verdict in self._pending:
            verdict.look()
            if verdict.done:
                self._say(verdict.kill)
        self._pending = [verdict for verdict in self._pending if not verdict.done]
        if time.monotonic() - self._study_asked > STUDY_S:
            self._study_asked = time.monotonic()
            if self._targets and not self._running_studies():
                self._create()

    def _running_studies(self) -> list[int]:
        return [study for (study,) in self._records.rows("SELECT id FROM study WHERE state = 'running'")]

    def _create(self) -> None:
        """The one before has ended, or there was none; an api that is being started again is asked again."""
        with contextlib.suppress(httpx.TransportError):
            answer = self._service.client.post(
                "/api/v1/studies",
                json={**STUDY, "seed": self._studies},
                headers={"Idempotency-Key": f"s{self._studies}"},
            )
            if answer.status_code >= 500:
                return
            assert answer.status_code in {200, 201}, answer.text
            self._studies += 1

    def _cancelled(self) -> bool:
        """Whether no study runs; asks for that."""
        for study in self._running_studies():
            with contextlib.suppress(httpx.TransportError):
                self._service.client.post(f"/api/v1/studies/{study}/cancel")
        return not self._running_studies()

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s"
            for verdict in self._pending:
                verdict.look()
                if verdict.done:
                    self._say(verdict.kill)
            self._pending = [verdict for verdict in self._pending if not verdict.done]
            time.sleep(0.05)
