"""What a study does about a failure, as pure functions: the loop acts on them and the page of a trial tells them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from autotune.domain.early_abort import least_objective
from autotune.domain.failure import Failure, FailureClass, Phase, RetryPolicy
from autotune.domain.measurement import Measurement, Trust
from autotune.domain.trial import MAX_ATTEMPTS, StudyPhase, Trial, TrialState
from autotune.domain.value import Value

TRIES = 2  # a launch may fail for a reason of its own: baseline and recipes get one more before they count as crashing

MENDED_FIRST = "Nothing that a study varies changes it: mend the host, the image or the model, then resume the study."

SERVICE_STOPPED = "service stopped"
NOT_TRUSTED = "measurement not trusted"
EXECUTOR_UNAVAILABLE = "executor unavailable"
# Said by the control plane itself, of an attempt that nothing on a host has ended.
_NOBODYS_FAULT = frozenset({SERVICE_STOPPED, EXECUTOR_UNAVAILABLE})
BACK_OFF_S = 2.0  # a port, a device's memory or a socket needs a moment until it is free again
BACK_OFF_FACTOR = 4.0


class Retry(StrEnum):
    """What follows an attempt that failed."""

    ELSEWHERE = "elsewhere"
    HERE = "here"
    FINAL = "final"


class Consequence(StrEnum):
    """What a study does about a failure."""

    RETRIED = "retried"
    LAUNCHED_AGAIN = "launched_again"
    LEARNED = "learned"
    SET_ASIDE = "set_aside"


class Policy(Value):
    """A consequence and the sentence that explains it."""

    consequence: Consequence
    sentence: str


def retry(failure: Failure, attempts: int, hosts: Collection[str] | None = None) -> Retry:
    """Whether the trial gets another attempt, and where.

    `attempts`: how many of the trial's have failed, this one with them, counted by `charged`. `hosts`: those on
    which none of them failed; None where they are not known. A candidate's own failure is final: it would be
    the same again, and a study learns more from another candidate. What has to be mended is final where there is no
    other host: the same one lacks it the next time as well.
    """
    if failure.signature in _NOBODYS_FAULT:
        return Retry.HERE
    if failure.blames_candidate or attempts >= MAX_ATTEMPTS:
        return Retry.FINAL
    if hosts is None or hosts:
        return Retry.ELSEWHERE
    return Retry.FINAL if failure.worth is RetryPolicy.REPAIR else Retry.HERE


def back_off_s(failures: Sequence[Failure]) -> float:
    """How long to leave a host alone before its next attempt, after these failures of one trial."""
    times = charged(failures)
    if not times or failures[-1].signature in _NOBODYS_FAULT:
        return 0.0
    return BACK_OFF_S * BACK_OFF_FACTOR ** (times - 1)


def measured_again(measurement: Measurement, before: Iterable[Failure]) -> Failure | None:
    """Why a launch whose measurement can't be trusted is made once more; None where it stands as it is.

    `before`: why the trial's earlier attempts were lost. The second such measurement is stored with its reasons.
    """
    if measurement.trust is not Trust.INVALID or any(failure.signature == NOT_TRUSTED for failure in before):
        return None
    return Failure(
        phase=Phase.LOAD,
        failure_class=FailureClass.INFRASTRUCTURE,
        summary=f"the measurement can't be trusted: {'; '.join(measurement.trust_reasons) or 'no reason was given'}",
        signature=NOT_TRUSTED,
    )


def charged(failures: Iterable[Failure]) -> int:
    """How many of them count towards `MAX_ATTEMPTS`: not those in which the service itself was stopped."""
    return sum(failure.signature not in _NOBODYS_FAULT for failure in failures)


def hosts_to_avoid(failures: Iterable[Failure]) -> tuple[str, ...]:
    """Where the next attempt of the trial should not run, each once and in order."""
    # What disturbs a measurement most often passes, and another host would be another comparison.
    spared = _NOBODYS_FAULT | {NOT_TRUSTED}
    blamed = (f.host for f in failures if f.host is not None and f.signature not in spared)
    return tuple(dict.fromkeys(blamed))


def launched_again(phase: StudyPhase, failed: int) -> bool:
    """Whether the same values are launched as a trial of their own, after so many that failed, whatever the failure."""
    return phase in (StudyPhase.GATE, StudyPhase.RECIPES) and failed < TRIES


def policy(trial: Trial) -> Policy | None:
    """What the study does about the failure that ended a trial; None where none did."""
    if trial.state is not TrialState.FAILED or trial.failure is None:
        return None
    if trial.is_lost:
        times = "once" if trial.attempt == 1 else f"{trial.attempt} times"
        sentence = f"Launched {times} and given up. It says nothing about the candidate: the search is not told."
        if trial.failure.worth is RetryPolicy.REPAIR:
            sentence = f"{sentence} {MENDED_FIRST}"
        return Policy(consequence=Consequence.SET_ASIDE, sentence=sentence)
    if launched_again(trial.phase, 1):
        then = "the study ends" if trial.phase is StudyPhase.GATE else "the recipe counts as crashing"
        sentence = f"Launched once more as a trial of its own; when that fails too, {then}."
        return Policy(consequence=Consequence.LAUNCHED_AGAIN, sentence=sentence)
    if (least := least_objective(trial.failure)) is not None:
        sentence = f"Cut under load: the search is told that it costs at least {least:.4g} ms."
    elif trial.phase is StudyPhase.CONFIRM:
        sentence = "Held against its finalist, which can't be confirmed: it has to run at every launch."
    else:
        sentence = (
            "The search is told that these values fail: they are not tried again, and others like them less often."
        )
    return Policy(consequence=Consequence.LEARNED, sentence=sentence)


def policy_of_attempt(failure: Failure) -> Policy:
    """What the study did about an attempt that did not end its trial."""
    if failure.signature in _NOBODYS_FAULT:
        sentence = "Launched again once there was a place for it; the attempt does not count."
    elif failure.signature == NOT_TRUSTED:
        sentence = (
            "Measured once more; a second measurement that can't be trusted is kept with its reasons, uncompared."
        )
    else:
        sentence = (
            f"Launched again, on another host where there is one, at most {MAX_ATTEMPTS} times in all; "
            "the search is not told."
        )
    return Policy(consequence=Consequence.RETRIED, sentence=sentence)
