"""One kill, and what has become of its attempt: looked at again and again until everything is decided."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.attempt_watch import AttemptWatch
from tests.soak.records import Records
from tests.soak.victims import CONTROL_PLANE, MEASURED, Moment, Victim, right_ends
from workers.attempt_files import AttemptFiles
from workers.marked_processes import marked

CLEAN_S = 10.0  # after the kill, or after the end of an attempt that it must not touch, nothing of it lives
QUIET_S = 1.5  # something that is only about to start would be overlooked
END_S = 120.0  # a dispatcher or a Ray head comes back in between: seconds as a rule
DEVICES_S = 90.0  # as above; a quarantine takes 60 s
_LOOK_S = 0.1


@dataclass
class Limits:
    """How patient the verdict is, in s."""

    clean_s: float = CLEAN_S
    end_s: float = END_S
    devices_s: float = DEVICES_S


@dataclass
class Kill:
    """One SIGKILL and its verdict. `violations` name the counts that they go into."""

    number: int
    victim: Victim
    moment: Moment
    uid: str
    pid: int
    right: list[str]
    end: str | None = None
    clean_s: float = 0.0
    end_s: float | None = None
    devices_s: float | None = None
    violations: dict[str, str] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        return asdict(self)


class Verdict:
    """Follows the attempt that a kill has hit. `look` often, until `done`."""

    def __init__(self, kill: Kill, watch: AttemptWatch, records: Records, limits: Limits) -> None:
        self.kill = kill
        self.done = False
        self._watch = watch
        self._records = records
        self._limits = limits
        self._killed = time.monotonic()
        self._looked = 0.0
        self._ended: float | None = None

    @property
    def harmless(self) -> bool:
        """Whether the attempt goes on after the kill."""
        return self.kill.victim in CONTROL_PLANE

    def look(self) -> None:
        now = time.monotonic()
        if self.done or now - self._looked < _LOOK_S:
            return
        self._looked = now
        self._watch.note_processes()
        living = self._living()
        now = time.monotonic()
        self._look_at_end(now)
        begun = self._ended if self.harmless else self._killed
        if begun is not None and living:
            self.kill.clean_s = round(now - begun, 2)
            if now - begun > self._limits.clean_s:
                self._violated("processes_left", f"{_described(living)} live {now - begun:.1f} s later")
        devices_free = self._look_at_devices(now)
        decided = (self._ended is not None and devices_free) or "lost" in self.kill.violations
        quiet = not living and now - self._killed > QUIET_S and now - (self._ended or self._killed) > QUIET_S / 2
        given_up = bool({"processes_left"} & self.kill.violations.keys())
        if decided and (quiet or given_up):
            self.done = True
            self._watch.close()

    def _living(self) -> set[int]:
        files = AttemptFiles(self._watch.folder.parent, self.kill.uid)
        runner = files.runner()
        return self._watch.survivors() | marked(files.root_text, self.kill.uid).keys() - {runner.pid if runner else 0}

    def _look_at_end(self, now: float) -> None:
        if self._ended is not None:
            return
        end = self._records.end(self.kill.uid)
        if end is None:
            if now - self._killed > self._limits.end_s:
                self._violated("lost", f"no end {now - self._killed:.0f} s after the kill")
            return
        self._ended = now
        self.kill.end = end.what
        self.kill.end_s = round(now - self._killed, 2)
        if end.what not in self.kill.right:
            self._violated("wrong_class", f"{end.what} instead of {' or '.join(self.kill.right)}: {end.failure}")

    def _look_at_devices(self, now: float) -> bool:
        """Whether they are free, set aside, or have been in use for too long."""
        if self._ended is None:
            return False
        if self.kill.devices_s is not None or "devices_stuck" in self.kill.violations:
            return True
        leased = self._records.leases(self.kill.uid)
        if not leased:
            self.kill.devices_s = round(now - self._ended, 2)
        elif now - self._ended > self._limits.devices_s:
            self._violated("devices_stuck", f"devices {leased} are leased {now - self._ended:.0f} s after the end")
        return not leased

    def _violated(self, count: str, words: str) -> None:
        self.kill.violations.setdefault(count, words)


def rights(victim: Victim, moment: Moment, samples_written: bool) -> list[str]:
    """How the attempt may end; it went on between the look at its folder and the signal."""
    right = right_ends(victim, moment)
    if samples_written:
        right |= {MEASURED}
    return sorted(right)


def _described(pids: set[int]) -> str:
    words = []
    for pid in sorted(pids):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            words.append(f"{pid} ({command[:120]})")
        except OSError:
            words.append(str(pid))
    return ", ".join(words)


def strike(pid: int, number: int) -> bool:
    """Whether the process was there to be signalled."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
