"""One study in motion: decides, commits, dispatches, collects, judges, commits once, tells."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta

from autotune.domain.deployment import facts
from autotune.domain.device import Placement
from autotune.domain.early_abort import HopelessAbove
from autotune.domain.failure import Failure, FailureClass, Phase
from autotune.domain.job import Provenance, TrialJob, TrialOutcome
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import render
from autotune.domain.learned_bounds import broken, fit, learned_bounds
from autotune.domain.learned_limits import PhaseLimits, learned_limits
from autotune.domain.measurement import Measurement
from autotune.domain.objective import Verdict, judge
from autotune.domain.retry import (
    EXECUTOR_UNAVAILABLE,
    SERVICE_STOPPED,
    Retry,
    back_off_s,
    charged,
    hosts_to_avoid,
    measured_again,
    retry,
)
from autotune.domain.space import Settled
from autotune.domain.study import Study, StudyState
from autotune.domain.trial import NewTrial, StudyPhase, Trial, TrialState
from autotune.engine.comparability import reference
from autotune.engine.corrections import counted_candidate
from autotune.engine.device_desk import DeviceDesk
from autotune.engine.incumbent import hopeless_above
from autotune.engine.ports import Clock, Proposer, ProposerSource, StudyStore, TrialExecutor
from autotune.engine.study_plan import Finish, Launch, Search, StudyProgress, Wait, next_step
from autotune.errors import Conflict, InvalidCandidate, InvalidStudy, TrialAlreadyFinished, Unavailable

# A search that proposes only what the rules refuse must come to an end: a peer's loop never did.
MAX_REFUSALS = 50
# An executor that takes nothing is asked again after this time, not at every turn.
UNAVAILABLE_S = 5
NO_DEVICES_S = 1


def attempt_uid(study: Study, number: int, attempt: int) -> str:
    """The name of an attempt, unique for ever: actor, folder and process marker carry it."""
    return f"{study.uid}-{number}-{attempt}"


class StudyLoop:
    """Everything that it knows beside its proposer can be rebuilt from the store. Not thread-safe."""

    def __init__(
        self,
        study: Study,
        store: StudyStore,
        executor: TrialExecutor,
        proposers: ProposerSource,
        clock: Clock,
        desk: DeviceDesk | None = None,
    ) -> None:
        self._study = study
        self._store = store
        self._executor = executor
        self._clock = clock
        self._desk = desk
        self._space = store.space_of(study.id)
        self._facts = facts(study.spec.deployment, study.spec.workload)
        self._trials: dict[int, Trial] = {t.number: t for t in store.trials(study.id).items}
        self._proposer: Proposer = proposers.proposer(study, self._space, list(self._trials.values()))
        self._skipped: set[str] = set()
        self._exhausted = False
        self._not_before = self._taken_up = clock.now()
        self._recover()

    @property
    def study(self) -> Study:
        return self._study

    def _recover(self) -> None:
        """Take over what an earlier dispatcher left running; what left no trace was never launched."""
        for trial in list(self._trials.values()):
            if trial.state is TrialState.RUNNING and not self._executor.adopt(self._job(trial)):
                text = "no trace of the attempt is left after a restart of the dispatcher"
                failure = Failure(phase=Phase.PLACE, failure_class=FailureClass.INFRASTRUCTURE, summary=text)
                uid = attempt_uid(self._study, trial.number, trial.attempt)
                self._conclude(trial, TrialOutcome(uid=uid, failure=failure))

    def advance(self, room: int) -> int:
        """Start up to `room` attempts; gives how many were started. The study may be finished afterwards."""
        started = 0
        if self._clock.now() < self._not_before:
            return started
        while started < room and self._flying() < self._study.spec.parallel_trials:
            trial = next((t for t in self._trials.values() if t.state is TrialState.WAITING), None) or self._next()
            if trial is None or not self._dispatch(trial):
                break
            started += 1
        return started

    def ingest(self, outcome: TrialOutcome) -> None:
        """Store an outcome once; a second one for the same trial changes nothing."""
        trial = self._by_uid(outcome.uid)
        if trial is None or trial.state is not TrialState.RUNNING:
            return
        self._conclude(trial, outcome)

    def _conclude(self, trial: Trial, outcome: TrialOutcome) -> None:
        """The end of a running attempt: of the trial too, unless another attempt is due."""
        if outcome.failure is not None and self._lost_or_final(trial, outcome.failure, outcome.provenance):
            return
        if outcome.measurement and (doubt := measured_again(outcome.measurement, self._lost_before(trial))):
            self._lose(trial, doubt)
            return
        counted = counted_candidate(self._space, trial.candidate, outcome, self._facts)
        if counted is not None:
            outcome = outcome.model_copy(update={"counted": counted})
        verdict = self._verdict(trial, outcome.measurement) if outcome.measurement else None
        try:
            done = self._store.finish_trial(self._study.id, trial.number, trial.attempt, outcome, verdict)
        except TrialAlreadyFinished:
            done = self._store.trial(self._study.id, trial.number)
        self._trials[trial.number] = done
        self._proposer.tell(done)

    def _verdict(self, trial: Trial, measurement: Measurement) -> Verdict:
        spec = self._study.spec
        return judge(measurement, spec.objective, spec.sla, reference(self._trials.values(), trial, measurement))

    def _lost_or_final(self, trial: Trial, failure: Failure, provenance: Provenance | None) -> bool:
        """Whether the attempt was lost and the trial waits for another one."""
        if failure.host is None and provenance is not None:
            failure = failure.model_copy(update={"host": provenance.host})
        failures = [*self._lost_before(trial), failure]
        then = retry(failure, charged(failures), self._hosts_left(failures))
        if then is Retry.FINAL:
            return False
        self._lose(trial, failure)
        if then is Retry.HERE:
            self._hold_back(back_off_s(failures))
        return True

    def _hold_back(self, seconds: float) -> None:
        """Start nothing for so long: another candidate would meet the same host."""
        self._not_before = max(self._not_before, self._clock.now() + timedelta(seconds=seconds))

    def _lost_before(self, trial: Trial) -> list[Failure]:
        """Why the trial's earlier attempts were lost; the first attempt of a trial asks nobody."""
        if trial.attempt < 2:
            return []
        kept = self._store.attempts(self._study.id, trial.number)
        return [a.failure for a in kept if a.failure is not None and a.attempt < trial.attempt]

    def _hosts_left(self, failures: Sequence[Failure]) -> Sequence[str] | None:
        """Hosts on which the trial was not lost; None where the executor can't say."""
        try:
            hosts = self._executor.hosts()
        except Unavailable:
            return None
        return [host for host in hosts if host not in hosts_to_avoid(failures)]

    def suspend(self) -> None:
        """End every attempt in flight and keep its trial for later: the service is being stopped."""
        failure = Failure(
            phase=Phase.STOP,
            failure_class=FailureClass.INFRASTRUCTURE,
            summary="the service was stopped",
            signature=SERVICE_STOPPED,
        )
        for trial in list(self._trials.values()):
            if trial.state is TrialState.RUNNING:
                self._executor.cancel(attempt_uid(self._study, trial.number, trial.attempt))
                self._lose(trial, failure)

    def cancel(self) -> None:
        """End every attempt in flight: the study is no longer running."""
        for trial in self._store.trials(self._study.id).items:
            if not trial.state.is_finished:
                if trial.attempt:
                    self._executor.cancel(attempt_uid(self._study, trial.number, trial.attempt))
                self._trials[trial.number] = self._store.cancel_trial(self._study.id, trial.number)

    def _flying(self) -> int:
        return sum(t.state is TrialState.RUNNING for t in self._trials.values())

    def _by_uid(self, uid: str) -> Trial | None:
        return next((t for t in self._trials.values() if attempt_uid(self._study, t.number, t.attempt) == uid), None)

    def _next(self) -> Trial | None:
        """Commit the next trial; None when there is nothing to start now. Finishes the study at its end."""
        while True:
            progress = StudyProgress(
                now=self._clock.now(),
                taken_up=self._taken_up,
                skipped=frozenset(self._skipped),
                exhausted=self._exhausted,
            )
            step = next_step(self._study.spec, self._space, list(self._trials.values()), progress)
            match step:
                case Wait():
                    return None
                case Finish():
                    self._study = self._store.finish_study(self._study.id, step.state, step.finding)
                    return None
                case Launch():
                    try:
                        settled = self._space.settle(step.values, self._facts)
                    except InvalidCandidate:
                        self._skipped.add(step.label)
                        continue
                    return self._commit(step.phase, step.label, step.values, settled)
                case Search():
                    trial = self._propose()
                    if trial is not None:
                        return trial
                    self._exhausted = True

    def _propose(self) -> Trial | None:
        """A candidate of the proposer, within the rules and within what failed trials taught."""
        bounds = learned_bounds(self._space, self._trials.values())
        for _ in range(MAX_REFUSALS):
            values = self._proposer.ask()
            if values is None:
                return None
            fitted = fit(self._space, bounds, self._space.complete(values))
            if fitted is None:
                continue
            try:
                settled = self._space.settle(fitted.values, self._facts)
            except InvalidCandidate:
                continue
            if broken(bounds, settled.candidate.values):
                continue
            learned = tuple(str(b) for b in bounds if str(b) in fitted.repairs and b.knob in settled.candidate.values)
            settled = settled.model_copy(update={"repairs": settled.repairs + learned})
            trial = self._commit(StudyPhase.SEARCH, "search", values, settled)
            self._proposer.pending(trial)
            return trial
        return None

    def _commit(self, phase: StudyPhase, label: str, values: Mapping[str, KnobValue], settled: Settled) -> Trial:
        if phase is not self._study.phase:
            self._store.set_phase(self._study.id, phase)
            self._study = self._store.study(self._study.id)
        new = NewTrial(
            phase=phase,
            label=label,
            proposal=dict(values),
            candidate=settled.candidate,
            plan=render(self._space, settled.candidate, self._facts),
            repairs=settled.repairs,
            warnings=settled.warnings,
            stall_limit_s=settled.stall_limit_s,
        )
        trial = self._store.add_trial(self._study.id, new)
        self._trials[trial.number] = trial
        return trial

    def _dispatch(self, trial: Trial) -> bool:
        uid = attempt_uid(self._study, trial.number, trial.attempt + 1)
        try:
            placement = self._place(trial)
        except InvalidStudy as error:
            self._study = self._store.finish_study(self._study.id, StudyState.FAILED, error.message)
            return False
        try:
            running = self._store.start_attempt(self._study.id, trial.number, uid, placement)
        except Conflict:
            # Cancelled in the meantime, by the API.
            self._trials[trial.number] = self._store.trial(self._study.id, trial.number)
            return False
        self._trials[trial.number] = running
        try:
            self._executor.submit(self._job(running, placement))
        except Unavailable as error:
            failure = Failure(
                phase=Phase.PLACE,
                failure_class=FailureClass.INFRASTRUCTURE,
                summary=error.message,
                signature=EXECUTOR_UNAVAILABLE,
            )
            self._lose(running, failure)
            self._hold_back(UNAVAILABLE_S)
            return False
        return True

    def _place(self, trial: Trial) -> Placement | None:
        """Raises Unavailable while no devices are free; they are asked for again a little later."""
        if self._desk is None:
            return None
        try:
            next_one = trial.model_copy(update={"attempt": trial.attempt + 1})
            avoid = hosts_to_avoid(self._lost_before(next_one))
            room = self._executor.hosts_with_room()
            return self._desk.place(self._space.engine, self._study.spec.deployment, room, avoid)
        except Unavailable:
            self._hold_back(NO_DEVICES_S)
            raise

    def _lose(self, trial: Trial, failure: Failure) -> None:
        self._trials[trial.number] = self._store.lose_attempt(self._study.id, trial.number, trial.attempt, failure)

    def _limits(self, trial: Trial) -> PhaseLimits | None:
        """What the study has learned about the length of phases; only the search loses patience sooner."""
        if trial.phase is not StudyPhase.SEARCH:
            return None
        return learned_limits(t.durations_s for t in self._trials.values() if t.state is TrialState.MEASURED)

    def _hopeless_above(self, trial: Trial) -> HopelessAbove | None:
        spec = self._study.spec
        if not spec.early_abort or trial.phase is not StudyPhase.SEARCH:
            return None
        return hopeless_above(spec.objective, spec.workload, self._trials.values())

    def _job(self, trial: Trial, placement: Placement | None = None) -> TrialJob:
        spec = self._study.spec
        uid = attempt_uid(self._study, trial.number, trial.attempt)
        # All candidates are offered the same prompts: what differs between two of them is then not their luck with
        # drafts. Each launch is a fresh server, whose cache knows none of them.
        digest = hashlib.sha256(f"{spec.seed}/{self._study.uid}".encode()).digest()
        return TrialJob(
            uid=uid,
            study_id=self._study.id,
            trial_number=trial.number,
            attempt=trial.attempt,
            deployment=spec.deployment,
            plan=trial.plan,
            workload=spec.workload,
            seed=int.from_bytes(digest[:4], "big") & 0x7FFFFFFF,
            study_seed=spec.seed,
            sla=spec.sla,
            stall_limit_s=trial.stall_limit_s,
            limits=self._limits(trial),
            hopeless_above=self._hopeless_above(trial),
            avoid_hosts=hosts_to_avoid(self._lost_before(trial)),
            host_devices=placement.devices if placement else (),
            host=placement.host if placement else None,
        )
