"""One attempt on this host: start the servers of a job, wait, measure, stop, and say what came of it.

`python -m workers.attempt --attempts DIR --templates DIR UID` runs the job that lies in the attempt's folder.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from autotune.domain.effective import EffectiveConfig
from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import Provenance, TrialJob, TrialOutcome
from autotune.domain.knobs import SERVER
from autotune.domain.learned_limits import limited
from autotune.domain.measurement import Measurement
from autotune.domain.template import Deadlines, LaunchTemplate
from autotune.engine.ports import TemplateSource
from workers.attempt_failures import CANCELLED, AttemptFailures, Ended, unblamed
from workers.attempt_files import AlreadyStarted, AttemptFiles
from workers.code_identity import code_identity
from workers.conclusions import BrokenLevel, broken_level, endpoint, measured, provenance
from workers.effective.roles import effective_roles
from workers.engine_version import engine_versions
from workers.environment import program_environment, role_devices
from workers.failures.classify import Finding
from workers.host_templates import HostTemplates
from workers.launchers.choose import launcher_for
from workers.launchers.launching import Launcher
from workers.load.process import LoadFailed, LoadProcess
from workers.load.spec import LoadResult, LoadSpec
from workers.lost_cause import lost_cause
from workers.probe import TICK_S, Readiness, wait_ready
from workers.redaction import redact, secret_values
from workers.role_command import RoleCommand
from workers.served_name import served_name
from workers.server_tree import SupervisorLost
from workers.start_log import StartLogs

ALREADY_STARTED_CODE = 3

_FAULTS = {LoadFailed: FailureClass.CLIENT_FAULT, SupervisorLost: FailureClass.INFRASTRUCTURE}
_LAST_EXIT_S = 1.0  # between the first broken connection and the report that the server has ended


def run_attempt(
    job: TrialJob, attempts_root: Path, templates: TemplateSource, cancelled: threading.Event | None = None
) -> TrialOutcome:
    """Run the attempt and return what is then in its `outcome.json` too.

    Returns only when no process of the attempt is left on this host, or with a Failure that says which are.
    Whatever goes wrong is a Failure in the outcome; setting `cancelled` ends the attempt with one of class
    infrastructure. Raises AlreadyStarted, and launches nothing, when the attempt was ever started before.
    """
    files = AttemptFiles(attempts_root, job.uid)
    files.claim()
    outcome = _Attempt(job, files, templates, cancelled or threading.Event()).run()
    files.write_outcome(outcome)
    return outcome


class _Attempt:
    def __init__(
        self, job: TrialJob, files: AttemptFiles, templates: TemplateSource, cancelled: threading.Event
    ) -> None:
        self._job = job
        self._files = files
        self._templates = templates
        self._cancelled = cancelled
        self._failures = AttemptFailures()
        self._phase_begun = 0.0  # on the monotonic clock, in s
        self._durations: dict[str, float] = {}
        self._endpoint = SERVER
        self._tail = ""
        self._provenance: Provenance | None = None
        self._launcher: Launcher | None = None
        self._load: LoadProcess | None = None
        self._limits = Deadlines()
        self._model = job.deployment.model  # as requests call it
        self._effective: dict[str, EffectiveConfig] = {}
        self._ready_at: dict[str, int] = {}  # size of each role's log when the server became ready

    def run(self) -> TrialOutcome:
        measurement, failure = None, None
        try:
            try:
                measurement, failure = self._failures.attempted(self._measure, _FAULTS)
            finally:
                told = self._failures.told_role or self._endpoint
                self._tail = redact(self._files.log_tail(told), self._failures.secrets)
                survivors = self._stop()
            if survivors:
                measurement, failure = None, failure or self._failures.failure(FailureClass.INFRASTRUCTURE, survivors)
            failure = unblamed(failure, self._files.write_problem())
            if not survivors:
                self._files.delete_scratch()
        except Exception:  # noqa: BLE001  a defect of ours must not look like a lost worker or a bad candidate
            words = f"the worker failed: {traceback.format_exc()}"
            measurement, failure = None, self._failures.failure(FailureClass.INFRASTRUCTURE, words)
        if failure is not None:
            failure = failure.model_copy(update={"log_tail": self._tail})
        return TrialOutcome(
            uid=self._job.uid,
            measurement=measurement,
            failure=failure,
            provenance=self._provenance,
            durations_s=self._durations,
            log_tail=self._tail,
            effective=self._effective,
        )

    # --- the phases -------------------------------------------------------------------------

    def _measure(self) -> Measurement:
        with self._during(Phase.PLACE):
            template = self._templates.template(self._job.deployment.template)
            self._failures.engine = template.engine
            self._endpoint = endpoint(template)
            self._limits = limited(template.deadlines, self._job.limits)
            self._model = served_name(template, self._job)
            self._launcher = launcher = launcher_for(self._job, template, self._files)
        with self._during(Phase.LAUNCH):
            self._remember(template, launcher, launcher.commands())
            launcher.start(self._failures.secrets)
            launcher.wait_started(self._watch)
        base_url = launcher.urls[self._endpoint]
        with self._during(Phase.READY):
            logs = {role: self._files.log(role) for role in template.roles}
            starts = StartLogs(logs, template.engine, self._limits)
            try:
                for role in sorted(template.roles, key=lambda name: name == self._endpoint):  # what others wait for
                    self._wait_ready(template, role, launcher, starts)
            finally:
                self._durations |= starts.durations_s()
            found = engine_versions(template.engine, self._files, launcher.urls)
            said = {role: redact(version, self._failures.secrets) for role, version in found.items()}
            assert self._provenance is not None
            self._provenance = self._provenance.model_copy(update={"engine_versions": said})
            self._ready_at = {role: self._files.log_size(role) for role in template.roles}
            self._check_applied(template, base_url)
        with self._during(Phase.WARM_UP):
            spec = LoadSpec(
                base_url=base_url,
                model=self._model,
                workload=self._job.workload,
                seed=self._job.seed,
                study_seed=self._job.study_seed,
                metrics_urls=launcher.urls,
                api_key_env=launcher.api_key_env,
            )
            key = {name: os.environ[name] for name in (launcher.api_key_env,) if name is not None}
            self._load = LoadProcess.start(spec, self._files.folder, program_environment(self._files) | key)
            self._wait_load(self._load, self._limits.warm_up_s)
            self._check_requests(self._load)
        with self._during(Phase.LOAD):
            self._wait_load(self._load, self._limits.load_s)
            result = self._result(self._load)
            self._check_applied(template, base_url)  # some corrections come with the first requests
            return measured(
                self._job.workload,
                result.levels,
                self._effective,
                result.server,
                stopped=result.stopped,
                sla=self._job.sla,
                host=result.host.load,
            )

    def _remember(self, template: LaunchTemplate, launcher: Launcher, commands: Mapping[str, RoleCommand]) -> None:
        """Provenance and secrets, before anything is started that could fail."""
        found = secret_values((c.env for c in commands.values()), (c.argv for c in commands.values()))
        self._failures.secrets = (*launcher.secrets, *found)
        shown = {role: tuple(redact(word, self._failures.secrets) for word in c.argv) for role, c in commands.items()}
        more = {"commands": shown, "devices": role_devices(self._job, template), "code": code_identity()}
        more |= launcher.provenance()
        self._provenance = provenance(template, commands, self._failures.secrets).model_copy(update=more)

    def _wait_ready(self, template: LaunchTemplate, role: str, launcher: Launcher, starts: StartLogs) -> None:
        """One role. The limit on the time counts from the start of this phase, the one on silence for its own log."""
        limits = self._limits
        stall_s = min(limits.stall_s, self._job.stall_limit_s or limits.stall_s)
        answer = wait_ready(
            launcher.urls[role],
            self._model,
            template.health_path,
            round(max(limits.ready_s - (time.monotonic() - self._phase_begun), 0.0), 1),
            stall_s if launcher.keeps_logs else math.inf,
            is_dead=self._has_exits,
            log_size=lambda: self._files.log_size(role),
            overdue=starts.overdue,
            api_key=next(iter(launcher.secrets), None),
            may_be_silent=lambda: starts.compiles(role),
        )
        if answer.readiness is Readiness.READY:
            return
        if answer.readiness is Readiness.DIED:
            self._watch()
        self._failures.told_role = role
        detail = answer.detail if len(template.roles) == 1 else f"{role}: {answer.detail}"
        if answer.readiness is Readiness.FOREIGN:
            raise Ended(self._failures.failure(FailureClass.INFRASTRUCTURE, f"the server {detail}"))
        silence_s = stall_s if answer.readiness is Readiness.SILENT else None
        raise self._failures.found(self._classify(silence_s=silence_s), detail)

    def _wait_load(self, load: LoadProcess, limit_s: float) -> None:
        """Until the load process has left the current phase, or has ended."""
        before = {Phase.WARM_UP: {"starting", "warm_up"}, Phase.LOAD: {"load"}}[self._failures.phase]
        deadline = time.monotonic() + limit_s
        while not load.ended and load.poll().phase in before | {"done"}:
            self._watch()
            self._check_requests(load)
            if time.monotonic() > deadline:
                raise self._failures.late(limit_s, self._classify())
            time.sleep(TICK_S)

    def _check_requests(self, load: LoadProcess) -> None:
        """Raises as soon as no measurement can come of this load any more."""
        told = load.tally(self._failures.phase)
        if told is None:
            return
        level, tally = told
        patience_s = self._limits.token_patience_s(self._job.workload.request_timeout_s)
        if tally.idle_s is not None and tally.idle_s > patience_s:
            self._watch_closely()
            raise self._failures.stalled(patience_s, self._classify(silence_s=tally.idle_s))
        if (lost := lost_cause(self._job.workload, level, tally)) is not None:
            raise self._refused(lost)
        self._failures.check_hopeless(self._job.hopeless_above, self._job.workload, level, tally)

    def _refused(self, broken: BrokenLevel) -> Ended:
        self._watch_closely()
        return self._failures.refused(broken, self._classify())

    def _result(self, load: LoadProcess) -> LoadResult:
        try:
            result = load.result()
        except LoadFailed:
            self._watch_closely()  # the server may have taken it along
            raise
        if (broken := broken_level(result.levels)) is not None:
            raise self._refused(broken)
        return result

    def _check_applied(self, template: LaunchTemplate, base_url: str) -> None:
        """Raises when the server did not read a setting: what would be measured is another configuration."""
        self._effective = effective_roles(self._job.plan, template, self._files, base_url, self._failures.secrets)
        self._failures.check_applied(self._effective)

    def _stop(self) -> str | None:
        """End everything; says what could not be ended."""
        with self._during(Phase.STOP):
            if self._load is not None:
                self._load.stop()
            return self._launcher.stop() if self._launcher is not None else None

    # --- watching ---------------------------------------------------------------------------

    def _has_exits(self) -> bool:
        assert self._launcher is not None
        self._check_cancelled()
        return bool(self._launcher.poll())

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Ended(self._failures.failure(FailureClass.INFRASTRUCTURE, CANCELLED))

    def _watch(self) -> None:
        """Raises when a server has ended or the attempt was cancelled."""
        self._check_cancelled()
        assert self._launcher is not None
        for role, code in self._launcher.poll().items():
            self._failures.told_role = role
            raise self._failures.died(role, code, self._classify(code))

    def _watch_closely(self) -> None:
        """As `_watch`, for a moment: broken connections show before the end of the server does."""
        deadline = time.monotonic() + _LAST_EXIT_S
        while time.monotonic() < deadline:
            self._watch()
            time.sleep(TICK_S)

    def _classify(self, exit_code: int | None = None, silence_s: float | None = None) -> Finding:
        """From everything that was written since the servers became ready, or since the start."""
        roles = self._provenance.roles if self._provenance else {}
        logs = {role: self._files.log_text(role, self._ready_at.get(role, 0)) for role in roles}
        assert self._launcher is not None
        if (own := self._launcher.finding(self._failures.phase, self._failures.told_role, exit_code)) is not None:
            return own
        oom_kills = self._launcher.oom_kills
        return self._failures.classify(exit_code, logs, self._files.device_log_text(), oom_kills, silence_s)

    @contextmanager
    def _during(self, phase: Phase) -> Iterator[None]:
        self._failures.phase = phase
        self._phase_begun = begun = time.monotonic()
        try:
            yield
        finally:
            self._durations[phase] = round(time.monotonic() - begun, 3)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the outcome was written, whatever it is; 3 when the attempt was started before."""
    parser = argparse.ArgumentParser(prog="python -m workers.attempt", description="Run one attempt of a trial.")
    parser.add_argument("--attempts", type=Path, required=True, help="folder of all attempts")
    parser.add_argument("--templates", type=Path, help="folder of the user's launch templates")
    parser.add_argument("uid")
    asked = parser.parse_args(arguments)
    cancelled = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: cancelled.set())
    job = AttemptFiles(asked.attempts, asked.uid).read_job()
    try:
        run_attempt(job, asked.attempts, HostTemplates(asked.templates), cancelled)
    except AlreadyStarted as error:
        sys.stderr.write(f"{error.message}\n")
        return ALREADY_STARTED_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
