"""An attempt that follows the folder's protocol without a server: a stand-in for `workers.attempt` in tests.

What it does stands in the job: `SCRIPT` in the server's env is one of

* `measure`: an outcome with a measurement, at once;
* `crash`: an outcome with a failure of the candidate;
* `wait`: runs until the file `go` appears in the attempt's folder, then measures;
* `die`: the runner kills itself;
* `never-begin`: the runner ends before it has claimed the attempt;
* `raise`: the runner ends with an exception.

Each start is one line in `starts`. While it runs there is a process with the attempt's mark in a session of
its own that ends when the runner does, as a supervisor sees to it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from autotune.domain.job import TrialJob, TrialOutcome
from autotune.engine.ports import TemplateSource
from tests import builders
from workers.attempt_files import AlreadyStarted, AttemptFiles
from workers.environment import base_environment
from workers.host_templates import HostTemplates


def scripted_job(uid: str, script: str) -> TrialJob:
    job = builders.job(uid)
    server = job.plan.roles["server"].model_copy(update={"env": {"SCRIPT": script}})
    return job.model_copy(update={"plan": job.plan.model_copy(update={"roles": {"server": server}})})


def run_attempt(job: TrialJob, attempts_root: Path, _templates: TemplateSource) -> TrialOutcome:
    script = job.plan.roles["server"].env["SCRIPT"]
    files = AttemptFiles(attempts_root, job.uid)
    if script == "never-begin":
        os._exit(7)
    files.claim()
    with (files.folder / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    server = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, start_new_session=True, env=base_environment(files), cwd=files.folder
    )
    try:
        return _play(script, files)
    finally:
        server.communicate()


def _play(script: str, files: AttemptFiles) -> TrialOutcome:
    failure = None
    match script:
        case "wait":
            while not (files.folder / "go").exists():
                time.sleep(0.02)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise RuntimeError("the script says so")
        case "crash":
            failure = builders.failure()
    outcome = builders.outcome(files.uid, failure=failure)
    files.write_outcome(outcome)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--attempts", type=Path)
    parser.add_argument("--templates", type=Path)
    parser.add_argument("uid")
    asked = parser.parse_args()
    job = AttemptFiles(asked.attempts, asked.uid).read_job()
    try:
        run_attempt(job, asked.attempts, HostTemplates(asked.templates))
    except AlreadyStarted as error:
        sys.stderr.write(f"{error.message}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
