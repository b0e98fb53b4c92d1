"""The environment of everything that an attempt starts, built from nothing.

A worker's own environment never reaches a server: it carries the cluster's token, proxies, and settings that
a search would otherwise have to guess (Ray sets OMP_NUM_THREADS=1 for its workers).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from autotune.domain.device import ASCEND_ENGINES
from autotune.domain.job import TrialJob
from autotune.domain.launch_plan import RolePlan
from autotune.domain.template import LaunchTemplate, RoleTemplate, fill, is_denied_env
from autotune.errors import InvalidCandidate, Problem
from workers.attempt_files import AttemptFiles
from workers.constants.hook import constant_problems, with_constants
from workers.devices.held_memory import DEVICES_DIR
from workers.devices.simulated import registry
from workers.host_templates import library_path
from workers.marked_processes import ATTEMPT_VARIABLE, ROOT_VARIABLE

LONGEST_VALUE = 4096

# Where engines and their compilers keep what they make at start. By the beginning of the engine's name.
_CACHES = (
    ("vllm", "VLLM_CACHE_ROOT", "vllm"),
    ("vllm", "TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("vllm", "TRITON_CACHE_DIR", "triton"),
    ("sglang", "TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("sglang", "TRITON_CACHE_DIR", "triton"),
)
_ASCEND_CACHE = ("ASCEND_CACHE_PATH", "ascend")  # operators that CANN compiles, static kernels among them

_PACKAGE_ROOT = Path(__file__).resolve().parent.parent
_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
_DEVICE_LOGS = "ASCEND_PROCESS_LOG_PATH"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def base_environment(files: AttemptFiles) -> dict[str, str]:
    """What every process of the attempt gets: a search path, a locale, private folders and the marks."""
    python_folder = str(Path(sys.executable).parent)
    search_path = os.defpath.split(os.pathsep)
    if python_folder not in search_path:
        search_path.insert(0, python_folder)
    return {
        "PATH": os.pathsep.join(search_path),
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "HOME": str(files.home),
        "TMPDIR": str(files.tmp),
        ATTEMPT_VARIABLE: files.uid,
        ROOT_VARIABLE: files.root_text,
    }


def program_environment(files: AttemptFiles) -> dict[str, str]:
    """For our own programs around the server: the base, and where this package lies."""
    return {**base_environment(files), "PYTHONPATH": str(_PACKAGE_ROOT)}


def cache_environment(template: LaunchTemplate, files: AttemptFiles) -> dict[str, str]:
    """Folders for what is compiled at start: the attempt's own, or the template's shared one.

    A cache that is left by another configuration can hide that this one does not compile. Template and plan may
    say otherwise; an exported script leaves all of this to the engine.
    """
    root = template.shared_cache or str(files.cache)
    names = {name: f"{root}/{folder}" for engine, name, folder in _CACHES if template.engine.startswith(engine)}
    if template.engine in ASCEND_ENGINES:
        name, folder = _ASCEND_CACHE
        names[name] = f"{root}/{folder}"
    return names


def simulation_environment(job: TrialJob, template: LaunchTemplate, files: AttemptFiles) -> dict[str, str]:
    """Where simulated servers book the memory of devices, once these are leased to one attempt at a time."""
    if not (template.simulated and job.host_devices):
        return {}
    return {DEVICES_DIR: str(registry(files.folder.parent))}


def role_environment(
    template: LaunchTemplate, role: RoleTemplate, plan: RolePlan, places: Mapping[str, str]
) -> dict[str, str]:
    """What a server gets on top of the base: the template's variables, the plan's, devices, libraries, constants.

    `places` fills placeholders; its `devices` are those of the role.

    Raises InvalidCandidate with every entry of the plan that is refused, InvalidTemplate for a library that
    is not on this host.
    """
    env = {name: fill(value, places) for name, value in role.env.items()}
    if template.engine in ASCEND_ENGINES and role.takes_devices:
        env[_DEVICES] = places["devices"]
        env.setdefault(_DEVICE_LOGS, fill("{trial_dir}/plog", places))
    problems = [problem for name, value in plan.env.items() if (problem := _refusal(name, value))]
    problems += [
        Problem(key=f"argv[{i}]", message="holds a NUL byte") for i, word in enumerate(plan.argv) if "\0" in word
    ]
    for name in plan.preload:
        if name not in template.libraries:
            known = tuple(sorted(template.libraries))
            problems.append(
                Problem(key="preload", message=f"template {template.name} has no library {name}", allowed=known)
            )
    problems += constant_problems(plan.constants)
    if problems:
        raise InvalidCandidate("the launch plan holds settings that are refused", problems)
    env |= plan.env
    if plan.preload:
        paths = [str(library_path(template, name)) for name in plan.preload]
        env["LD_PRELOAD"] = ":".join([*paths, *filter(None, [env.get("LD_PRELOAD")])])
    return with_constants(env, plan.constants)


def role_devices(job: TrialJob, template: LaunchTemplate) -> dict[str, str]:
    """By role, such as `0,1,2,3`: the trial's devices, divided in order among the roles that take any.

    They are those that were leased for it, else the first ones of the host. Where there are fewer devices than such
    roles, they share them all.
    """
    numbers = job.host_devices or tuple(range(job.deployment.devices))
    count = len(numbers)
    taking = [name for name, role in template.roles.items() if role.takes_devices]
    parts = len(taking) if count >= len(taking) else 1
    bounds = [count * i // max(parts, 1) for i in range(parts + 1)]
    lists = [",".join(map(str, numbers[begin:end])) for begin, end in pairwise(bounds)]
    own = dict(zip(taking, lists if parts == len(taking) else lists * len(taking), strict=True))
    return {name: own.get(name, "") for name in template.roles}


def counted_devices(template: LaunchTemplate, numbers: str) -> str:
    """The devices of a role as its server counts them: in a container that sees no others, from 0."""
    if template.container is None or not template.container.renumber_devices or not numbers:
        return numbers
    return ",".join(map(str, range(numbers.count(",") + 1)))


def _refusal(name: str, value: str) -> Problem | None:
    key = f"env.{name}"
    if not _NAME.fullmatch(name):
        return Problem(key=key, message="is no name of an environment variable")
    if is_denied_env(name) or name in {"LANG", "LC_ALL", "TMPDIR", _DEVICES, _DEVICE_LOGS}:
        return Problem(key=key, message="may not be set by a search space", mend="set it in the launch template")
    if any(c in value for c in "\0\n\r"):
        return Problem(key=key, message="holds a line break or a NUL byte")
    if len(value) > LONGEST_VALUE:
        return Problem(key=key, message=f"is longer than {LONGEST_VALUE} characters")
    return None
