"""One attempt on this host: start the servers of a job, wait, measure, stop, and say what came of it.

`python -m workers.attempt --attempts DIR --templates DIR UID` runs the job that lies in the attempt's folder.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from autotune.domain.effective import EffectiveConfig
from autotune.domain.failure import Failure, FailureClass, Phase
from autotune.domain.job import Provenance, TrialJob, TrialOutcome
from autotune.domain.knobs import SERVER
from autotune.domain.learned_limits import limited
from autotune.domain.measurement import Measurement
from autotune.domain.template import Deadlines, LaunchTemplate
from autotune.engine.ports import TemplateSource
from autotune.errors import InvalidCandidate, InvalidTemplate, NotFound
from workers.attempt_files import AlreadyStarted, AttemptFiles
from workers.code_identity import code_identity
from workers.conclusions import broken_level, endpoint, measured, not_applied, provenance
from workers.effective.roles import effective_roles
from workers.engine_version import engine_versions
from workers.environment import program_environment, role_devices
from workers.failures.classify import Finding, classify, describe_exit
from workers.free_port import free_port
from workers.host_templates import HostTemplates
from workers.load.process import LoadFailed, LoadProcess
from workers.load.spec import LoadResult, LoadSpec
from workers.lost_cause import lost_cause
from workers.probe import TICK_S, Readiness, wait_ready
from workers.redaction import redact, secret_values
from workers.role_command import RoleCommand, role_commands
from workers.served_name import served_name
from workers.server_tree import ServerTree, SupervisorLost
from workers.start_log import StartLogs

HOST = "127.0.0.1"
ALREADY_STARTED_CODE = 3

_LAST_EXIT_S = 1.0  # between the first broken connection and the report that the server has ended


class _Ended(Exception):
    """The attempt cannot go on."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.summary)
        self.failure = failure


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
        self._phase = Phase.PLACE
        self._phase_begun = 0.0  # on the monotonic clock, in s
        self._durations: dict[str, float] = {}
        self._engine = ""
        self._endpoint = SERVER
        self._told_role: str | None = None  # the role that failed
        self._signature: str | None = None  # of the catalogue
        self._secrets: tuple[str, ...] = ()
        self._tail = ""
        self._provenance: Provenance | None = None
        self._tree: ServerTree | None = None
        self._load: LoadProcess | None = None
        self._limits = Deadlines()
        self._model = job.deployment.model  # as requests call it
        self._effective: dict[str, EffectiveConfig] = {}
        self._ready_at: dict[str, int] = {}  # size of each role's log when the server became ready

    def run(self) -> TrialOutcome:
        measurement, failure = None, None
        try:
            try:
                measurement, failure = self._measure_or_fail()
            finally:
                self._tail = redact(self._files.log_tail(self._told_role or self._endpoint), self._secrets)
                survivors = self._stop()
            if survivors:
                measurement, failure = None, failure or self._failure(FailureClass.INFRASTRUCTURE, survivors)
            failure = self._unblamed(failure)
            if not survivors:
                self._files.delete_scratch()
        except Exception:  # noqa: BLE001  a defect of ours must not look like a lost worker or a bad candidate
            words = f"the worker failed: {traceback.format_exc()}"
            measurement, failure = None, self._failure(FailureClass.INFRASTRUCTURE, words)
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

    def _measure_or_fail(self) -> tuple[Measurement | None, Failure | None]:
        try:
            return self._measure(), None
        except _Ended as ended:
            return None, ended.failure
        except InvalidCandidate as error:
            reasons = "; ".join(map(str, error.problems))
            return None, self._failure(FailureClass.INVALID_CONFIG, error.message, reasons)
        except InvalidTemplate as error:
            words = "; ".join([error.message, *map(str, error.problems)])
            return None, self._failure(FailureClass.INFRASTRUCTURE, words)
        except LoadFailed as error:
            return None, self._failure(FailureClass.CLIENT_FAULT, error.message)
        except (NotFound, SupervisorLost) as error:
            return None, self._failure(FailureClass.INFRASTRUCTURE, str(error))

    # --- the phases -------------------------------------------------------------------------

    def _measure(self) -> Measurement:
        with self._during(Phase.PLACE):
            template = self._templates.template(self._job.deployment.template)
            self._engine = template.engine
            self._endpoint = endpoint(template)
            self._limits = limited(template.deadlines, self._job.limits)
            self._model = served_name(template, self._job)
            ports = {role: free_port(HOST) for role in template.roles}
        with self._during(Phase.LAUNCH):
            commands = role_commands(self._job, template, self._files, HOST, ports)
            self._remember(template, commands)
            self._tree = ServerTree(self._files, commands, self._secrets, template.deadlines.stop_s)
            self._tree.wait_started(len(commands), self._watch)
        base_url = f"http://{HOST}:{ports[self._endpoint]}"
        with self._during(Phase.READY):
            logs = {role: self._files.log(role) for role in template.roles}
            starts = StartLogs(logs, self._engine, self._limits)
            try:
                for role in sorted(template.roles, key=lambda name: name == self._endpoint):  # what others wait for
                    self._wait_ready(template, role, f"http://{HOST}:{ports[role]}", starts)
            finally:
                self._durations |= starts.durations_s()
            found = engine_versions(self._engine, self._files, {role: f"http://{HOST}:{ports[role]}" for role in ports})
            said = {role: redact(version, self._secrets) for role, version in found.items()}
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
            )
            self._load = LoadProcess.start(spec, self._files.folder, program_environment(self._files))
            self._wait_load(self._load, self._limits.warm_up_s)
            self._check_requests(self._load)
        with self._during(Phase.LOAD):
            self._wait_load(self._load, self._limits.load_s)
            result = self._result(self._load)
            self._check_applied(template, base_url)  # some corrections come with the first requests
            return measured(self._job.workload, result.levels, self._effective)

    def _remember(self, template: LaunchTemplate, commands: Mapping[str, RoleCommand]) -> None:
        """Provenance and secrets, before anything is started that could fail."""
        self._secrets = secret_values((c.env for c in commands.values()), (c.argv for c in commands.values()))
        shown = {role: tuple(redact(word, self._secrets) for word in c.argv) for role, c in commands.items()}
        more = {"commands": shown, "devices": role_devices(self._job, template), "code": code_identity()}
        self._provenance = provenance(template, commands, self._secrets).model_copy(update=more)

    def _wait_ready(self, template: LaunchTemplate, role: str, base_url: str, starts: StartLogs) -> None:
        """One role. The limit on the time counts from the start of this phase, the one on silence for its own log."""
        limits = self._limits
        answer = wait_ready(
            base_url,
            self._model,
            template.health_path,
            round(max(limits.ready_s - (time.monotonic() - self._phase_begun), 0.0), 1),
            min(limits.stall_s, self._job.stall_limit_s or limits.stall_s),
            is_dead=self._has_exits,
            log_size=lambda: self._files.log_size(role),
            overdue=starts.overdue,
        )
        if answer.readiness is Readiness.READY:
            return
        if answer.readiness is Readiness.DIED:
            self._watch()
        self._told_role = role
        detail = answer.detail if len(template.roles) == 1 else f"{role}: {answer.detail}"
        if answer.readiness is Readiness.FOREIGN:
            raise _Ended(self._failure(FailureClass.INFRASTRUCTURE, f"the server {detail}"))
        finding = self._classify(None, role)
        if finding.signature is None and answer.readiness is Readiness.SILENT:
            finding = finding._replace(failure_class=FailureClass.HANG)
        raise _Ended(self._found(finding, detail))

    def _wait_load(self, load: LoadProcess, limit_s: float) -> None:
        """Until the load process has left the current phase, or has ended."""
        before = {Phase.WARM_UP: {"starting", "warm_up"}, Phase.LOAD: {"load"}}[self._phase]
        deadline = time.monotonic() + limit_s
        while not load.ended and load.poll().phase in before | {"done"}:
            self._watch()
            self._check_requests(load)
            if time.monotonic() > deadline:
                finding = self._classify(None)
                summary = f"the {self._phase.replace('_', '-')} did not end within {limit_s:g} s"
                raise _Ended(self._found(finding, summary))
            time.sleep(TICK_S)

    def _check_requests(self, load: LoadProcess) -> None:
        """Raises as soon as no measurement can come of this load any more."""
        told = load.tally(self._phase)
        if told is None:
            return
        level, tally = told
        patience_s = self._limits.token_stall_s or self._limits.stall_s
        if tally.idle_s is not None and tally.idle_s > patience_s:
            self._watch_closely()
            finding = self._classify(None)
            failure_class = finding.failure_class if finding.signature else FailureClass.HANG
            summary = f"no token for {patience_s:g} s"
            raise _Ended(self._failure(failure_class, summary, finding.line))
        if (lost := lost_cause(self._job.workload, level, tally)) is not None:
            raise self._refused(lost.summary, lost.commonest)

    def _refused(self, summary: str, commonest: str) -> _Ended:
        """Requests failed: what the server's log says about it comes first."""
        self._watch_closely()
        finding = self._classify(None)
        if finding.signature is not None:
            return _Ended(self._failure(finding.failure_class, f"{summary}: {commonest}", finding.line))
        return _Ended(self._failure(FailureClass.REQUEST_ERRORS, summary, commonest))

    def _result(self, load: LoadProcess) -> LoadResult:
        try:
            result = load.result()
        except LoadFailed as error:
            self._watch_closely()
            raise _Ended(self._failure(FailureClass.CLIENT_FAULT, error.message)) from error
        if (broken := broken_level(result.levels)) is not None:
            raise self._refused(broken.summary, broken.commonest)
        return result

    def _check_applied(self, template: LaunchTemplate, base_url: str) -> None:
        """Raises when the server did not read a setting: what would be measured is another configuration."""
        self._effective = effective_roles(self._job.plan, template, self._files, base_url, self._secrets)
        if (ignored := not_applied(self._effective)) is not None:
            raise _Ended(self._failure(FailureClass.CONFIG_NOT_APPLIED, ignored.summary, ignored.line))

    def _stop(self) -> str | None:
        """End everything; says what could not be ended."""
        with self._during(Phase.STOP):
            if self._load is not None:
                self._load.stop()
            left = self._tree.stop() if self._tree is not None else set()
            return f"processes {', '.join(map(str, sorted(left)))} survived SIGKILL" if left else None

    # --- watching ---------------------------------------------------------------------------

    def _has_exits(self) -> bool:
        assert self._tree is not None
        self._check_cancelled()
        return bool(self._tree.poll())

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise _Ended(self._failure(FailureClass.INFRASTRUCTURE, "cancelled"))

    def _watch(self) -> None:
        """Raises when a server has ended or the attempt was cancelled."""
        self._check_cancelled()
        assert self._tree is not None
        for role, code in self._tree.poll().items():
            self._told_role = role
            finding = self._classify(code, role)
            summary = f"{role} ended with {describe_exit(code)} in phase {self._phase}"
            raise _Ended(self._found(finding, summary, code))

    def _watch_closely(self) -> None:
        """As `_watch`, for a moment: broken connections show before the end of the server does."""
        deadline = time.monotonic() + _LAST_EXIT_S
        while time.monotonic() < deadline:
            self._watch()
            time.sleep(TICK_S)

    def _classify(self, exit_code: int | None, first_role: str = SERVER) -> Finding:
        """What the logs say; the failure that follows carries the signature."""
        finding = self._finding(exit_code, first_role)
        self._signature = finding.signature
        return finding

    def _finding(self, exit_code: int | None, first_role: str) -> Finding:
        """From everything that was written since the server became ready, or since the start.

        Where several roles fail at once, the log of the first one speaks for it, if it tells a cause.
        """
        roles = self._provenance.roles if self._provenance else {}
        ordered = sorted(roles, key=lambda role: role != first_role)
        texts = [self._files.log_text(role, self._ready_at.get(role, 0)) for role in ordered]
        device = self._files.device_log_text()
        if texts[1:]:
            own = classify(self._phase, exit_code, [texts[0], device], self._engine)
            if own.tells_cause:
                return own
        return classify(self._phase, exit_code, [*texts, device], self._engine)

    def _unblamed(self, failure: Failure | None) -> Failure | None:
        """A candidate is not to blame where this host could not even have kept its log."""
        if failure is None or not failure.failure_class.blames_candidate:
            return failure
        if (problem := self._files.write_problem()) is None:
            return failure
        words = {"failure_class": FailureClass.INFRASTRUCTURE, "summary": f"{problem}; {failure.summary}"}
        return failure.model_copy(update=words)

    @contextmanager
    def _during(self, phase: Phase) -> Iterator[None]:
        self._phase = phase
        self._phase_begun = begun = time.monotonic()
        try:
            yield
        finally:
            self._durations[phase] = round(time.monotonic() - begun, 3)

    def _found(self, finding: Finding, summary: str, exit_code: int | None = None) -> Failure:
        """What the log told, with the numbers in it."""
        told = self._failure(finding.failure_class, summary, finding.line, exit_code)
        return told.model_copy(update={"values": finding.values})

    def _failure(
        self, failure_class: FailureClass, summary: str, line: str | None = None, exit_code: int | None = None
    ) -> Failure:
        return Failure(
            phase=self._phase,
            failure_class=failure_class,
            summary=redact(summary, self._secrets),
            decisive_line=redact(line, self._secrets) if line is not None else None,
            exit_code=exit_code,
            signature=self._signature,
        )


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
