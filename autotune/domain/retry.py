"""What a study does about a failure, as pure functions: the loop acts on them and the page of a trial tells them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

from autotune.domain.failure import Failure
from autotune.domain.trial import MAX_ATTEMPTS, StudyPhase, Trial, TrialState
from autotune.domain.value import Value

TRIES = 2  # a launch may fail for a reason of its own: baseline and recipes get one more before they count as crashing

SERVICE_STOPPED = "service stopped"
EXECUTOR_UNAVAILABLE = "executor unavailable"
# Said by the control plane itself, of an attempt that nothing on a host has ended.
_NOBODYS_FAULT = frozenset({SERVICE_STOPPED, EXECUTOR_UNAVAILABLE})
# Signatures of the catalogue. A port is drawn anew for every attempt: the host is as good as another.
SAME_HOST = frozenset({"port taken"})
# What the host lacks, it lacks the next time as well.
LACKING = frozenset({"model files", "broken installation"})
# Of a class that counts against candidates, and yet as a rule what other jobs and a slow fabric do to a launch.
TRANSIENT = frozenset({"collectives cannot be set up"})


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
    the same again, and a study learns more from another candidate.
    """
    if failure.signature in _NOBODYS_FAULT:
        return Retry.HERE
    if failure.failure_class.blames_candidate and failure.signature not in TRANSIENT:
        return Retry.FINAL
    if attempts >= MAX_ATTEMPTS:
        return Retry.FINAL
    if failure.signature in SAME_HOST:
        return Retry.HERE
    if hosts is None or hosts:
        return Retry.ELSEWHERE
    return Retry.FINAL if failure.signature in LACKING else Retry.HERE


def charged(failures: Iterable[Failure]) -> int:
    """How many of them count towards `MAX_ATTEMPTS`: not those in which the service itself was stopped."""
    return sum(failure.signature not in _NOBODYS_FAULT for failure in failures)


def hosts_to_avoid(failures: Iterable[Failure]) -> tuple[str, ...]:
    """Where the next attempt of the trial should not run, each once and in order."""
    spared = _NOBODYS_FAULT | SAME_HOST
    return tuple(dict.fromkeys(f.host for f in failures if f.host is not None and f.signature not in spared))


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
        return Policy(consequence=Consequence.SET_ASIDE, sentence=sentence)
    if launched_again(trial.phase, 1):
        then = "the study ends" if trial.phase is StudyPhase.GATE else "the recipe counts as crashing"
        sentence = f"Launched once more as a trial of its own; when that fails too, {then}."
        return Policy(consequence=Consequence.LAUNCHED_AGAIN, sentence=sentence)
    if trial.phase is StudyPhase.CONFIRM:
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
    elif failure.signature in SAME_HOST:
        sentence = f"Launched again, at most {MAX_ATTEMPTS} times in all; the search is not told."
    else:
        sentence = (
            f"Launched again, on another host where there is one, at most {MAX_ATTEMPTS} times in all; "
            "the search is not told."
        )
    return Policy(consequence=Consequence.RETRIED, sentence=sentence)
