"""One attempt without a process: the same command lines, boot, load and judgement, on virtual time."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator, Mapping

from autotune.domain.effective import EffectiveConfig
from autotune.domain.failure import FailureClass, Phase
from autotune.domain.job import Provenance, TrialJob, TrialOutcome
from autotune.domain.knobs import SERVER
from autotune.domain.measurement import Measurement, RequestSample
from autotune.domain.stop_rule import Decision
from autotune.domain.template import LaunchTemplate
from autotune.engine.ports import TemplateSource
from autotune.errors import InvalidTemplate
from workers.attempt_failures import AttemptFailures, Ended
from workers.attempt_files import LOG_TAIL_BYTES, AttemptFiles
from workers.conclusions import ROUTER, broken_level, endpoint, measured, provenance
from workers.effective.roles import effective_texts
from workers.failures.classify import Finding
from workers.load.refusal import LoadRefused
from workers.load.spec import LoadSpec
from workers.redaction import redact, secret_values
from workers.role_command import RoleCommand, role_commands
from workers.simulator.boot import read_command
from workers.simulator.faults import ConfigRejected, NotStarted
from workers.simulator.model.settings import Role
from workers.simulator.router.flags import parse_router_flags
from workers.simulator.serving.batching import Batcher
from workers.simulator.serving.noise import launch_noise
from workers.simulator.start.booting import Booted
from workers.simulator.start.random_faults import freeze_after_steps
from workers.simulator.variables import SEED
from workers.simulator.virtual.deployment import Deployment, SingleServer
from workers.simulator.virtual.load import LoadCancelled, LoadStalled, LoadTooLong, VirtualLoad
from workers.simulator.virtual.patient_machine import PatientMachine, Silent
from workers.simulator.virtual.prefill_decode import PrefillDecode
from workers.simulator.virtual.server import ServerDied, VirtualServer

HOST = "127.0.0.1"
FIRST_PORT = 8000  # nothing is bound: ports only stand in command lines and logs
COMMAND = ("{python}", "-m", "workers.simulator")  # how a template starts a simulated server
_ERRORS = threading.Lock()  # sys.stderr is one name for all threads, and argparse writes there
REFUSED = 1  # exit status of a server that refuses its configuration
_FAULTS = {LoadRefused: FailureClass.CLIENT_FAULT, LoadCancelled: FailureClass.INFRASTRUCTURE}
DIED = 1  # exit status of a server that runs out of memory under load


def run_trial(
    job: TrialJob, files: AttemptFiles, templates: TemplateSource, cancelled: threading.Event | None = None
) -> TrialOutcome:
    """What the attempt comes to; logs lie in its folder afterwards, the outcome does not.

    Failures have the phase, class and decisive line of the attempt with real processes. A template that starts
    anything but simulated servers is a failure of class infrastructure, and so is a run that is `cancelled`.
    """
    return _Trial(job, files, templates, cancelled or threading.Event()).run()


class _Trial:
    def __init__(
        self, job: TrialJob, files: AttemptFiles, templates: TemplateSource, cancelled: threading.Event
    ) -> None:
        self._job = job
        self._files = files
        self._templates = templates
        self._cancelled = cancelled
        self._failures = AttemptFailures()
        self._durations: dict[str, float] = {}
        self._endpoint = SERVER
        self._provenance: Provenance | None = None
        self._logs: dict[str, io.StringIO] = {}
        self._ready_at: dict[str, int] = {}  # characters of each role's log when the servers became ready
        self._effective: dict[str, EffectiveConfig] = {}
        self._stopped: Mapping[str, Decision] = {}

    def run(self) -> TrialOutcome:
        measurement, failure = self._failures.attempted(self._measure, _FAULTS)
        tail = redact(_tail(self._text(self._failures.told_role or self._endpoint)), self._failures.secrets)
        for role in self._logs:
            self._files.log(role).write_text(redact(self._text(role), self._failures.secrets), encoding="utf-8")
        return TrialOutcome(
            uid=self._job.uid,
            measurement=measurement,
            failure=None if failure is None else failure.model_copy(update={"log_tail": tail}),
            provenance=self._provenance,
            durations_s=self._durations,
            log_tail=tail,
            effective=self._effective,
        )

    # --- the phases -------------------------------------------------------------------------

    def _measure(self) -> Measurement:
        self._begin(Phase.PLACE)
        template = self._templates.template(self._job.deployment.template)
        _check_simulated(template)
        self._failures.engine = template.engine
        self._endpoint = endpoint(template)
        self._begin(Phase.LAUNCH)
        ports = {role: FIRST_PORT + number for number, role in enumerate(template.roles)}
        commands = role_commands(self._job, template, self._files, HOST, ports)
        self._failures.secrets = secret_values((c.env for c in commands.values()), (c.argv for c in commands.values()))
        self._provenance = provenance(template, commands, self._failures.secrets, virtual_time=True)
        self._begin(Phase.READY)
        booted: dict[str, Booted] = {}
        for role, command in commands.items():
            booted |= self._start(template, role, command)
        self._ready_at = {role: len(self._text(role)) for role in self._logs}
        self._check_applied(template)
        deployment = self._deployment(booted, commands)
        try:
            levels = self._load(template, deployment, tells_cached=_answering(booted).surface.cached_tokens)
        except ServerDied as error:
            booted[error.name].narrator.died(error.failure)
            raise self._died(error.name, DIED) from error
        if any(len(self._text(role)) > size for role, size in self._ready_at.items()):
            self._check_applied(template)  # some corrections come with the first requests
        return measured(self._job.workload, levels, self._effective, stopped=self._stopped, sla=self._job.sla)

    def _start(self, template: LaunchTemplate, role: str, command: RoleCommand) -> dict[str, Booted]:
        """What the role becomes: one engine, or none for a router."""
        log = self._logs[role] = io.StringIO()
        words = command.argv[len(COMMAND) :]
        try:
            with _ERRORS, contextlib.redirect_stderr(log):
                if words[:1] == (ROUTER,):
                    parse_router_flags(words[1:])
                    return {}
                boot = read_command(words, command.env, log)
        except SystemExit as error:
            raise self._died(role, int(error.code or 0)) from error
        stall_s = min(template.deadlines.stall_s, self._job.stall_limit_s or template.deadlines.stall_s)
        machine = PatientMachine(stall_s)
        try:
            booted = boot.start([path for path in command.env.get("LD_PRELOAD", "").split(":") if path], machine)
        except ConfigRejected as error:  # a setting of the simulation that is none
            boot.narrator.rejected(str(error))
            raise self._died(role, REFUSED) from error
        except NotStarted as error:
            raise self._died(role, error.code) from error
        except Silent as error:
            self._failures.told_role = role
            finding = self._classify(silence_s=stall_s)
            raise self._failures.found(finding, f"no new line in the log for {stall_s:g} s") from error
        finally:  # roles start side by side
            self._durations[Phase.READY] = max(self._durations[Phase.READY], round(machine.waited_s, 3))
        boot.narrator.listening(boot.host, boot.port)
        return {role: booted}

    def _deployment(self, booted: Mapping[str, Booted], commands: Mapping[str, RoleCommand]) -> Deployment:
        servers: dict[Role, VirtualServer] = {}
        for name, one in booted.items():
            env = commands[name].env
            # Without a seed of the template each launch differs, and the same one comes out again.
            noise = launch_noise(env, env.get(SEED) or f"{self._job.uid}-{name}")
            batcher = Batcher(one.cost, one.memory, noise)
            servers[one.cost.config.role] = VirtualServer(name, batcher, freeze_after_steps(env))
        if len(servers) == len(booted):
            if servers.keys() == {Role.SERVER}:
                return SingleServer(servers[Role.SERVER])
            if servers.keys() == {Role.PREFILL, Role.DECODE}:
                system = _answering(booted).cost.system
                return PrefillDecode(servers[Role.PREFILL], servers[Role.DECODE], system)
        roles = ", ".join(f"{name} ({one.cost.config.role})" for name, one in booted.items())
        text = f"virtual time knows one server, or one for prefill and one for decode; here are: {roles or 'none'}"
        raise Ended(self._failures.failure(FailureClass.INFRASTRUCTURE, text))

    def _load(
        self, template: LaunchTemplate, deployment: Deployment, *, tells_cached: bool
    ) -> dict[str, tuple[RequestSample, ...]]:
        spec = LoadSpec(
            base_url=f"http://{HOST}:{FIRST_PORT}",
            model=self._job.deployment.model,
            workload=self._job.workload,
            seed=self._job.seed,
            study_seed=self._job.study_seed,
        )
        patience_s = template.deadlines.token_patience_s(self._job.workload.request_timeout_s)
        load = VirtualLoad(deployment, spec, self._cancelled.is_set, tells_cached=tells_cached, patience_s=patience_s)
        self._begin(Phase.WARM_UP)
        with self._limited(load, template.deadlines.warm_up_s) as end_s:
            load.warm_up(end_s)
        self._begin(Phase.LOAD)
        with self._limited(load, template.deadlines.load_s) as end_s:
            levels = {level.name: load.level(level, end_s) for level in spec.workload.levels}
        self._stopped = load.stopped
        if (broken := broken_level(levels)) is not None:
            raise self._failures.refused(broken, self._classify())
        return levels

    @contextlib.contextmanager
    def _limited(self, load: VirtualLoad, limit_s: float) -> Iterator[float]:
        """Counts the phase's time on the load's clock, and ends the attempt when it is too long."""
        begun_s = load.now_s
        try:
            yield begun_s + limit_s
        except LoadTooLong as error:
            raise self._failures.late(limit_s, self._classify()) from error
        except LoadStalled as error:
            raise self._failures.stalled(error.idle_s, self._classify(silence_s=error.idle_s)) from error
        finally:
            self._durations[self._failures.phase] = round(load.now_s - begun_s, 3)

    def _check_applied(self, template: LaunchTemplate) -> None:
        """Raises when a server did not read a setting: what would be measured is another configuration."""
        texts = {role: self._text(role) for role in template.roles}
        self._effective = effective_texts(self._job.plan, template, texts, self._failures.secrets)
        self._failures.check_applied(self._effective)

    # --- what came of it --------------------------------------------------------------------

    def _begin(self, phase: Phase) -> None:
        self._failures.phase = phase
        self._durations[phase] = 0.0

    def _text(self, role: str) -> str:
        return self._logs[role].getvalue() if role in self._logs else ""

    def _died(self, role: str, code: int) -> Ended:
        self._failures.told_role = role
        return self._failures.died(role, code, self._classify(code))

    def _classify(self, exit_code: int | None = None, silence_s: float | None = None) -> Finding:
        """From everything that was written since the servers became ready, or since the start."""
        logs = {role: self._text(role)[self._ready_at.get(role, 0) :] for role in self._logs}
        return self._failures.classify(exit_code, logs, silence_s=silence_s)


def _answering(booted: Mapping[str, Booted]) -> Booted:
    """The server whose answers clients see: decode's, where prefill is apart."""
    return max(booted.values(), key=lambda one: one.cost.config.role is Role.DECODE)


def _check_simulated(template: LaunchTemplate) -> None:
    """Raises InvalidTemplate for one whose servers are more than a simulation."""
    others = [name for name, role in template.roles.items() if role.argv[: len(COMMAND)] != COMMAND]
    if others or not template.simulated:
        what = f"role {others[0]} starts another program" if others else "it is not marked `simulated`"
        raise InvalidTemplate(f"template {template.name} cannot run on virtual time: {what}")


def _tail(text: str) -> str:
    """The last 8 KB, from the start of a line."""
    data = text.encode()
    if len(data) <= LOG_TAIL_BYTES:
        return text
    cut = data[-LOG_TAIL_BYTES:].decode("utf-8", "replace")
    return cut[cut.find("\n") + 1 :]
