"""Attempts of `fake_server.py` for tests, in this process or in one of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.launch_plan import LaunchPlan, RolePlan
from autotune.domain.template import Deadlines, LaunchTemplate, RoleTemplate
from autotune.domain.workload import Workload
from autotune.errors import NotFound
from tests import builders
from workers.attempt import run_attempt
from workers.attempt_files import AttemptFiles
from workers.marked_processes import marked, process_stat

FAKE_SERVER = Path(__file__).with_name("fake_server.py")
ARGV = ("{python}", "-S", str(FAKE_SERVER), "--host", "{host}", "--port", "{port}", "--served-model-name", "{model}")
MODEL = "tiny-model"
QUICK = Deadlines(ready_s=20, stall_s=20, warm_up_s=20, load_s=20, stop_s=2)


def template(
    argv: Sequence[str] = ARGV,
    env: Mapping[str, str] | None = None,
    deadlines: Deadlines = QUICK,
    libraries: Mapping[str, str] | None = None,
    engine: str = "fake",
) -> LaunchTemplate:
    """A template whose server is `fake_server.py`."""
    return LaunchTemplate(
        name="fake",
        engine=engine,
        roles={"server": RoleTemplate(argv=tuple(argv), env=dict(env or {}))},
        models={MODEL: "/models/tiny"},
        libraries=dict(libraries or {}),
        deadlines=deadlines,
        simulated=True,
    )


class OneTemplate:
    """Implements TemplateSource with a single template."""

    def __init__(self, template: LaunchTemplate) -> None:
        self._template = template

    def names(self) -> Sequence[str]:
        return [self._template.name]

    def template(self, name: str) -> LaunchTemplate:
        if name != self._template.name:
            raise NotFound(f"there is no launch template {name!r}; known: {self._template.name}")
        return self._template


def job(
    *argv: str,
    env: Mapping[str, str] | None = None,
    preload: Sequence[str] = (),
    uid: str = "s1-t0-a1",
    workload: Workload | None = None,
    model: str = MODEL,
) -> TrialJob:
    """One attempt whose plan adds `argv` and `env` to the fake server's command."""
    plan = LaunchPlan(roles={"server": RolePlan(argv=argv, env=dict(env or {}), preload=tuple(preload))})
    return builders.job(
        uid=uid,
        deployment=builders.deployment(template="fake", model=model),
        plan=plan,
        workload=workload or builders.workload(levels=["c1", "c4"]),
    )


def endless() -> Workload:
    """A load that goes on until somebody ends it."""
    return Workload.model_validate(
        {
            "prompt_tokens": 8,
            "output_tokens": 64,
            "levels": [{"concurrency": 2, "requests": 50_000}],
            "warmup_requests": 1,
        }
    )


def run(root: Path, one: TrialJob, launch_template: LaunchTemplate | None = None) -> TrialOutcome:
    """The attempt, here."""
    return run_attempt(one, root, OneTemplate(launch_template or template()))


def start_runner(
    root: Path, templates: Path, one: TrialJob, launch_template: LaunchTemplate | None = None
) -> subprocess.Popen[bytes]:
    """`python -m workers.attempt` as a process group of its own, as an executor starts it."""
    templates.mkdir(exist_ok=True)
    content = (launch_template or template()).model_dump(mode="json")
    (templates / "fake.yaml").write_text(yaml.safe_dump(content))
    AttemptFiles(root, one.uid).write_job(one)
    argv = ["-m", "workers.attempt", "--attempts", str(root), "--templates", str(templates), one.uid]
    return subprocess.Popen([sys.executable, *argv], start_new_session=True)


def wait_for(condition: Callable[[], object], limit_s: float = 30.0) -> float:
    """Seconds until the condition was true; fails the test when it never is."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < limit_s, "waited in vain"
        time.sleep(0.01)
    return time.monotonic() - begun


def number_in(file: Path) -> int | None:
    """A pid that the fake server wrote down; None while it has not."""
    text = file.read_text() if file.exists() else ""
    return int(text) if text else None


def is_alive(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is not None and stat.state not in "ZX"


def left(root: Path) -> dict[int, str]:
    """Processes of any attempt under the folder."""
    return marked(str(root.resolve()))
