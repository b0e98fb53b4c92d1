"""What a start meets besides its configuration: time that passes, silence, memory that others hold, a kill.

A server process meets them really, an endpoint on virtual time only counts them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn, Protocol

from workers.devices.held_memory import DEVICES_DIR, hold
from workers.simulator.faults import ConfigRejected, NotStarted
from workers.simulator.variables import START_S

LONGEST_START_S = 86_400.0


class Machine(Protocol):
    """The host under one launch."""

    def expect(self, seconds: float) -> None:
        """How much `wait` will come to in all, on a real host."""
        ...

    def wait(self, seconds: float) -> None:
        """A piece of the start that would take so long on a real host."""
        ...

    def stall(self, seconds: float) -> None:
        """Nothing happens, and nothing is said."""
        ...

    def hold(self, devices: list[int], gib: float) -> float:
        """Take so much memory of each device until the process ends; the most that others hold of one of them."""
        ...

    def kill(self) -> NoReturn:
        """The process gets SIGKILL."""
        ...


class VirtualMachine:
    """Counts. A stall longer than the limit for silence is a hang: whoever drives the start compares them."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.longest_silence_s = 0.0

    def expect(self, seconds: float) -> None:
        """Nothing depends on it here."""

    def wait(self, seconds: float) -> None:
        self.waited_s += seconds

    def stall(self, seconds: float) -> None:
        self.waited_s += seconds
        self.longest_silence_s = max(self.longest_silence_s, seconds)

    def hold(self, devices: list[int], gib: float) -> float:  # noqa: ARG002 - nothing is held in virtual time
        return 0.0

    def kill(self) -> NoReturn:
        raise NotStarted(-signal.SIGKILL)


class ServerMachine:
    """This process. AUTOTUNE_SIM_START_S is spread over the start; without it a start does not wait.

    SIGTERM ends a wait with the process.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._scale = 0.0
        folder = env.get(DEVICES_DIR)
        self._folder = Path(folder) if folder else None

    def expect(self, seconds: float) -> None:
        """Raises ConfigRejected when the setting is no number of seconds."""
        self._scale = number(self._env, START_S, LONGEST_START_S) / seconds if seconds > 0 else 0.0

    def wait(self, seconds: float) -> None:
        if self._scale:
            time.sleep(seconds * self._scale)

    def stall(self, seconds: float) -> None:
        time.sleep(seconds)

    def hold(self, devices: list[int], gib: float) -> float:
        return 0.0 if self._folder is None else hold(self._folder, devices, gib)

    def kill(self) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise NotStarted(-signal.SIGKILL)  # never reached: the signal cannot be caught


def number(env: Mapping[str, str], name: str, most: float) -> float:
    """A setting of the simulation, 0 where it is not set. Raises ConfigRejected outside [0, most]."""
    text = env.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise ConfigRejected(f"{name} must be a number from 0 to {most:g}, got {text!r}")
    return value
