"""The host under a start on virtual time."""

from __future__ import annotations

from workers.simulator.start.machine import VirtualMachine


class Silent(Exception):
    """The start says nothing for longer than anybody waits."""


class PatientMachine(VirtualMachine):
    """Counts what a start takes. Raises Silent where it would be given up because of its silence."""

    def __init__(self, stall_limit_s: float) -> None:
        super().__init__()
        self._stall_limit_s = stall_limit_s

    def stall(self, seconds: float) -> None:
        super().stall(min(seconds, self._stall_limit_s))
        if seconds > self._stall_limit_s:
            raise Silent
