"""Servers as processes of this host, below a supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autotune.domain.failure import Phase
from autotune.domain.job import TrialJob
from autotune.domain.template import LaunchTemplate
from workers.attempt_files import AttemptFiles
from workers.failures.classify import Finding
from workers.free_port import free_port
from workers.launchers.launching import HOST
from workers.role_command import RoleCommand, role_commands
from workers.server_tree import ServerTree


class LocalLauncher:
    """Implements Launcher."""

    secrets: tuple[str, ...] = ()
    api_key_env: str | None = None
    keeps_logs = True

    def __init__(self, job: TrialJob, template: LaunchTemplate, files: AttemptFiles) -> None:
        self._job = job
        self._template = template
        self._files = files
        self._ports = {role: free_port(HOST) for role in template.roles}
        self._commands: Mapping[str, RoleCommand] = {}
        self._tree: ServerTree | None = None
        self.urls: Mapping[str, str] = {role: f"http://{HOST}:{port}" for role, port in self._ports.items()}

    @property
    def oom_kills(self) -> int | None:
        return self._tree.oom_kills if self._tree is not None else None

    def commands(self) -> Mapping[str, RoleCommand]:
        self._commands = role_commands(self._job, self._template, self._files, HOST, self._ports)
        return self._commands

    def provenance(self) -> Mapping[str, Any]:
        return {}

    def start(self, secrets: tuple[str, ...], /) -> None:
        self._tree = ServerTree(self._files, self._commands, secrets, self._template.deadlines.stop_s)

    def wait_started(self, tick: Callable[[], None]) -> None:
        assert self._tree is not None
        self._tree.wait_started(len(self._commands), tick)

    def poll(self) -> Mapping[str, int]:
        return self._tree.poll() if self._tree is not None else {}

    def finding(self, _phase: Phase, _role: str | None, _exit_code: int | None, /) -> Finding | None:
        return None

    def stop(self) -> str | None:
        left = self._tree.stop() if self._tree is not None else set()
        return f"processes {', '.join(map(str, sorted(left)))} survived SIGKILL" if left else None
