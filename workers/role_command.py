"""From template and plan to the command lines of one attempt."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.domain.job import LaunchedRole, TrialJob
from autotune.domain.launch_plan import RolePlan
from autotune.domain.template import LaunchTemplate, fill, role_ports
from autotune.errors import InvalidCandidate, Problem
from workers.attempt_files import AttemptFiles
from workers.environment import (
    base_environment,
    cache_environment,
    counted_devices,
    role_devices,
    role_environment,
    simulation_environment,
)
from workers.host_templates import model_path
from workers.served_name import named_words

OPEN_PLACES = ("host", "port", "trial_dir")  # with the ports of the other roles: an export fills these anew


@dataclass(frozen=True, slots=True)
class RoleCommand:
    """What is run for one role, and the same as it goes into the provenance (not yet redacted)."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    launched: LaunchedRole


def role_commands(
    job: TrialJob, template: LaunchTemplate, files: AttemptFiles, host: str, ports: Mapping[str, int]
) -> dict[str, RoleCommand]:
    """One command for each role of the template.

    Raises InvalidCandidate for a plan that this host refuses or a stack that the template does not list,
    InvalidTemplate for a model or a library that is not here, NotFound for a model that the template does not know.
    """
    strangers = sorted(job.plan.roles.keys() - template.roles.keys())
    if strangers:
        known = tuple(sorted(template.roles))
        raise InvalidCandidate(
            f"template {template.name} has no such role",
            [Problem(key=f"roles.{name}", message="unknown role", allowed=known) for name in strangers],
        )
    kept = {
        "model": job.deployment.model,
        "model_path": model_path(template, job.deployment.model),
        "python": sys.executable,
    }
    devices = role_devices(job, template)
    # An export knows nothing of this host: it names the first devices, whichever the attempt had.
    open_devices = role_devices(job.model_copy(update={"host_devices": ()}), template)
    commands = {}
    for name, role in template.roles.items():
        plan = job.plan.roles.get(name, RolePlan())
        stack = _stack(template, name, plan.stack)
        own = kept | {"devices": counted_devices(template, open_devices[name])} | stack
        here = {
            "devices": counted_devices(template, devices[name]),
            "host": host,
            "port": str(ports[name]),
            "trial_dir": str(files.folder),
        }
        places = own | role_ports(ports) | here
        shown = role_environment(template, role, plan, own)
        commands[name] = RoleCommand(
            argv=(*(fill(word, places) for word in named_words(role, job)), *plan.argv),
            env=base_environment(files)
            | cache_environment(template, files)
            | simulation_environment(job, template, files)
            | role_environment(template, role, plan, places),
            launched=LaunchedRole(
                argv=(*(fill(word, own) for word in role.argv), *plan.argv),
                env=shown,
                image=fill(template.container.image, stack) if template.container is not None else None,
            ),
        )
    return commands


def _stack(template: LaunchTemplate, role: str, chosen: str | None) -> dict[str, str]:
    """What fills `{stack}`: the plan's choice, else the template's default."""
    takes = template.takes_stack(role)
    if chosen is None and not takes:
        return {}
    name = template.default_stack if chosen is None else chosen
    variant = template.stacks.get(name) if takes and name is not None else None
    if variant is not None:
        return {"stack": variant.value}
    if not takes:
        message = "this role is the same on every stack"
    elif name is None:
        message = "the template has no default, a stack has to be chosen"
    else:
        message = f"{name!r} is no stack of the template"
    allowed = tuple(sorted(template.stacks)) if takes else ()
    problem = Problem(key=f"roles.{role}.stack", message=message, allowed=allowed)
    raise InvalidCandidate(f"template {template.name} cannot be started on the stack of the launch plan", [problem])
