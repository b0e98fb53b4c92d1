"""What an attempt asks of the way in which its servers come to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from autotune.domain.failure import Phase
from workers.failures.classify import Finding
from workers.role_command import RoleCommand

HOST = "127.0.0.1"


class Launcher(Protocol):
    """The servers of one attempt, from its template. Not thread-safe.

    The order is: make it, `commands`, `start`, `wait_started`, `poll` as often as wanted, `stop`. Making it and
    `commands` start nothing.
    """

    @property
    def urls(self) -> Mapping[str, str]:
        """Where each role answers, such as `http://127.0.0.1:20123`."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values that must not be shown, besides those of the commands."""

    @property
    def api_key_env(self) -> str | None:
        """The variable of this process's environment whose value requests carry."""

    @property
    def keeps_logs(self) -> bool:
        """Whether what the servers say is written to their logs, so that silence means something."""

    @property
    def oom_kills(self) -> int | None:
        """By how much the kernel's counter rose until the last server ended; None while all run."""

    def commands(self) -> Mapping[str, RoleCommand]:
        """What will be run for each role.

        Raises InvalidCandidate for a plan that cannot be launched so, InvalidTemplate and NotFound for what this
        host lacks.
        """

    def provenance(self) -> Mapping[str, Any]:
        """Fields of the attempt's Provenance that only this launcher knows. After `commands`."""

    def start(self, secrets: tuple[str, ...], /) -> None:
        """Start every role; `secrets` are kept out of the logs."""

    def wait_started(self, tick: Callable[[], None]) -> None:
        """Until every role runs, or has ended; calls `tick` about every 10 ms. Raises SupervisorLost."""

    def poll(self) -> Mapping[str, int]:
        """Roles that have ended, each with its exit code, negative for a signal. Never waits. Raises SupervisorLost."""

    def finding(self, phase: Phase, role: str | None, exit_code: int | None, /) -> Finding | None:
        """What failed where it was this launcher and no server; None where the logs have to tell."""

    def stop(self) -> str | None:
        """End everything that was started, within bounds; says what could not be ended. Works at any time."""
