"""The outcome of an attempt that has none of its own: its runner is gone, or never came."""

from __future__ import annotations

from autotune.domain.failure import Failure, FailureClass, Phase
from autotune.domain.job import TrialOutcome
from workers.attempt_files import AlreadyStarted, AttemptFiles

_LAST_LINE = 500  # characters of the runner's last words that go into a failure


def lost(files: AttemptFiles, phase: Phase, summary: str, exit_code: int | None = None) -> TrialOutcome:
    """A failure of the infrastructure, with the last line of the runner's own log."""
    words = files.log_tail("runner").strip().splitlines()
    failure = Failure(
        phase=phase,
        failure_class=FailureClass.INFRASTRUCTURE,
        summary=summary,
        decisive_line=words[-1][:_LAST_LINE] if words else None,
        exit_code=exit_code,
    )
    return TrialOutcome(uid=files.uid, failure=failure)


def lost_without_folder(uid: str, phase: Phase, summary: str, host: str | None = None) -> TrialOutcome:
    """As `lost`, where the attempt's folder is out of reach."""
    failure = Failure(phase=phase, failure_class=FailureClass.INFRASTRUCTURE, summary=summary, host=host)
    return TrialOutcome(uid=uid, failure=failure)


def give_up(files: AttemptFiles, exit_code: int | None = None) -> TrialOutcome | None:
    """Claim an attempt that never began, and end it. None when it has begun in this very moment."""
    try:
        files.claim()
    except AlreadyStarted:
        return None
    outcome = lost(files, Phase.PLACE, "the attempt never began: its runner is not there", exit_code)
    files.write_outcome(outcome)
    return outcome
