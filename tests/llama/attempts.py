"""Attempts of a real llama.cpp server with the tiny model: the built-in launch template, run as a worker runs it."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.domain.failure import Failure
from autotune.domain.job import TrialJob, TrialOutcome
from autotune.domain.template import Deadlines, LaunchTemplate
from autotune.domain.workload import Workload
from tests.llama.running import ONE_THREAD
from tests.workers.launching import MODEL, OneTemplate, job, left, run, wait_for
from workers.attempt import run_attempt
from workers.attempt_files import AttemptFiles
from workers.host_templates import HostTemplates

PATIENT = Deadlines(ready_s=120, stall_s=120, warm_up_s=120, load_s=120, stop_s=6)
_LAUNCHER = "workers.engines.llama_server"

# The rest of the words replaces this program, with less address space than the host has memory.
_LIMIT = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); "
_LIMIT += "os.execv(sys.argv[2], sys.argv[2:])"


def llama(model: Path, before: Sequence[str] = (), **deadlines: float) -> LaunchTemplate:
    """The built-in template with this model; `before` stands before its command, `deadlines` change patient ones."""
    built_in = HostTemplates().template("llama-cpp")
    role = built_in.roles["server"]
    return built_in.model_copy(
        update={
            "name": "fake",
            "models": {MODEL: str(model)},
            "roles": {"server": role.model_copy(update={"argv": (*before, *role.argv)})},
            "deadlines": PATIENT.model_copy(update=deadlines),
        }
    )


def within(bytes_of_memory: int) -> Sequence[str]:
    """Words before a command that may not have more address space than this."""
    return ("{python}", "-c", _LIMIT, str(bytes_of_memory))


def llama_job(*flags: str, uid: str = "s1-t0-a1", workload: Workload | None = None) -> TrialJob:
    return job(*ONE_THREAD, *flags, uid=uid, workload=workload)


def failure_of(root: Path, one: TrialJob, template: LaunchTemplate) -> Failure:
    """Of an attempt that must fail, and must leave nothing running."""
    outcome = run(root, one, template)
    assert left(root) == {}
    assert outcome.failure is not None
    return outcome.failure


def short_requests() -> Workload:
    """A load that takes long enough for every test, of requests that take a few milliseconds each.

    All prompts are made before the first is sent: ten times as many take ten seconds.
    """
    levels = [{"concurrency": 2, "requests": 5_000}]
    return Workload.model_validate({"prompt_tokens": 8, "output_tokens": 4, "levels": levels, "warmup_requests": 1})


class Loaded:
    """An attempt in a thread, for tests that disturb its server in the middle of the load."""

    def __init__(self, root: Path, one: TrialJob, template: LaunchTemplate) -> None:
        self._root = root
        self._files = AttemptFiles(root, one.uid)
        self._cancelled = threading.Event()
        self._outcome: TrialOutcome | None = None
        self._thread = threading.Thread(target=self._run, args=(one, template))

    def _run(self, one: TrialJob, template: LaunchTemplate) -> None:
        self._outcome = run_attempt(one, self._root, OneTemplate(template), self._cancelled)

    def __enter__(self) -> Loaded:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cancelled.set()
        self._thread.join()

    def server(self) -> int:
        """The engine's process, once it has answered so many requests that the warm-up is long over."""
        wait_for(lambda: self._answered() > 400, limit_s=120)
        (pid,) = [pid for pid in left(self._root) if _LAUNCHER in _words(pid)]
        return pid

    def _answered(self) -> int:
        return len(re.findall("stop processing", self._files.log_text("server", 0)))

    def failure(self) -> Failure:
        """What ended it; nothing is left of it then."""
        self._thread.join()
        assert self._outcome is not None
        assert self._outcome.failure is not None
        assert left(self._root) == {}
        return self._outcome.failure


def _words(pid: int) -> Sequence[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return ()


def said(failure: Failure) -> Mapping[str, object]:
    """The part of a failure that a log of the corpus tells too."""
    return {"phase": failure.phase, "exit_code": failure.exit_code, "class": failure.failure_class}
