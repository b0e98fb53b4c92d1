"""Servers that run already: they are measured as they are, never started, stopped or changed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import LaunchedRole, TrialJob
from autotune.domain.launch_plan import RolePlan
from autotune.domain.launcher import Attach, allows
from autotune.domain.template import LaunchTemplate
from autotune.errors import InvalidCandidate, InvalidTemplate, NotFound, Problem
from workers.attempt_files import AttemptFiles
from workers.failures.classify import Finding
from workers.role_command import RoleCommand

ALLOW_LIST = "attach-hosts"  # beside the folder of attempts

_BEFORE_READY = frozenset({Phase.PLACE, Phase.LAUNCH, Phase.READY})


class AttachLauncher:
    """Implements Launcher.

    Raises InvalidTemplate for an address that is neither this host's own nor in its list. A name is looked up once,
    and what it stands for then is what is measured.
    """

    keeps_logs = False
    oom_kills: int | None = None

    def __init__(self, job: TrialJob, template: LaunchTemplate, files: AttemptFiles, attach: Attach) -> None:
        self._job = job
        self._template = template
        listed = allow_list(files.root.parent / ALLOW_LIST)
        self.urls: Mapping[str, str] = {
            name: allowed_url(f"roles.{name}.url", role.url or "", listed) for name, role in template.roles.items()
        }
        self.api_key_env = attach.api_key_env
        self.secrets: tuple[str, ...] = ()
        if self.api_key_env is not None:
            key = os.environ.get(self.api_key_env)
            if not key:
                message = f"{self.api_key_env} is not set in the worker's environment"
                problem = Problem(key="attach.api_key_env", message=message, mend="set it and start it anew")
                raise InvalidTemplate(f"template {template.name} needs an API key", [problem])
            self.secrets = (key,)

    def commands(self) -> Mapping[str, RoleCommand]:
        if self._job.deployment.model not in self._template.models:
            known = ", ".join(sorted(self._template.models))
            name = self._template.name
            raise NotFound(f"template {name} has no model {self._job.deployment.model!r}; known: {known}")
        problems = [
            Problem(key=f"roles.{role}", message=f"sets {_first_setting(plan)}", mend="leave every knob unset")
            for role, plan in sorted(self._job.plan.roles.items())
            if _first_setting(plan)
        ]
        if problems:
            words = "measures servers that run already: nothing can be set at their launch"
            raise InvalidCandidate(f"template {self._template.name} {words}", problems)
        return {
            name: RoleCommand(argv=(), env={}, launched=LaunchedRole(argv=(), env={}, url=role.url))
            for name, role in self._template.roles.items()
        }

    def provenance(self) -> Mapping[str, Any]:
        return {}

    def start(self, _secrets: tuple[str, ...], /) -> None:
        return

    def wait_started(self, tick: Callable[[], None]) -> None:
        tick()

    def poll(self) -> Mapping[str, int]:
        return {}

    def finding(self, phase: Phase, _role: str | None, _exit_code: int | None, /) -> Finding | None:
        """Nobody but the host is to blame for a server that is not there."""
        return Finding(FailureClass.INFRASTRUCTURE) if phase in _BEFORE_READY else None

    def stop(self) -> str | None:
        return None


def allow_list(path: Path) -> Sequence[str]:
    """One address or network a line, `#` starts a comment. Empty without the file.

    Raises InvalidTemplate for a line that is neither.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return ()
    entries = [(number, line.split("#")[0].strip()) for number, line in enumerate(lines, 1)]
    for number, entry in entries:
        try:
            if entry:
                allows(entry, "127.0.0.1")
        except ValueError as error:
            problem = Problem(
                key=entry, message="is neither an address nor a network", mend="write 10.1.2.3 or 10.1.0.0/16",
                line=number, file=path.name,
            )  # fmt: skip
            raise InvalidTemplate(f"{path} cannot be read", [problem]) from error
    return tuple(entry for _, entry in entries if entry)


def allowed_url(key: str, url: str, listed: Sequence[str]) -> str:
    """The url with an address in place of a name. Every address that the name has must be allowed."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        problem = Problem(key=key, message=f"{host}: {error.strerror or error}", mend="check the name")
        raise InvalidTemplate(f"{url} cannot be attached to", [problem]) from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for address in addresses:
        if not (ip_address(address).is_loopback or any(allows(entry, address) for entry in listed)):
            mend = f"whoever may measure it: add the address to {ALLOW_LIST} in the data directory of this host"
            raise InvalidTemplate(
                f"{url} may not be measured from this host",
                [Problem(key=key, message=f"{address} is neither loopback nor listed", mend=mend)],
            )
    address = addresses[0]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _first_setting(plan: RolePlan) -> str | None:
    stack = [f"stack {plan.stack}"] if plan.stack else []
    return next(iter([*plan.env, *plan.argv, *plan.preload, *plan.constants, *stack]), None)
