"""Every error that this product raises on purpose.

* AutotuneError
  * InvalidRequest          the caller must change what was asked
    * InvalidSpace          a search space file or value
    * InvalidStudy          a study file
    * InvalidCandidate      a value outside its knob, or a broken rule
    * InvalidTemplate       a launch template
  * NotFound                no object of that name or number
  * Conflict                the object is in a state that forbids this
    * TrialAlreadyFinished  a trial is finished exactly once
    * NothingToExport       the study has no result yet
  * Unavailable             try again later: a part of the service does not answer

A failing candidate is not an error: it is a `Failure` value (see `autotune.domain.failure`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with what was asked, and how to mend it.

    `key` is the dotted path of the offending entry (`budget.trials`, `sla[0]`), `line` its
    1-based line in the file where that is known, `allowed` the values that would do.
    """

    key: str
    message: str
    mend: str = ""
    allowed: tuple[str, ...] = ()
    line: int | None = None
    file: str | None = None

    def __str__(self) -> str:
        where = f"{self.file}:" if self.file else ""
        where += f"{self.line}: " if self.line else (" " if self.file else "")
        text = f"{where}{self.key}: {self.message}"
        if self.allowed:
            text += f" (allowed: {', '.join(self.allowed)})"
        return f"{text}; {self.mend}" if self.mend else text


class AutotuneError(Exception):
    """Base of all errors that carry a sentence for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(AutotuneError):
    """What was asked cannot be done; `problems` lists every reason at once."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class InvalidSpace(InvalidRequest):
    """A search space does not hold together."""


class InvalidStudy(InvalidRequest):
    """A study asks for something that cannot be run."""


class InvalidCandidate(InvalidRequest):
    """A candidate holds an unknown knob, a value out of range, or breaks a rule."""


class InvalidTemplate(InvalidRequest):
    """A launch template on this host cannot be used."""


class NotFound(AutotuneError):
    """There is no object of that name or number."""


class Conflict(AutotuneError):
    """The object is in a state that forbids what was asked."""


class TrialAlreadyFinished(Conflict):
    """A second result came for a trial that has one; the first stays."""


class NothingToExport(Conflict):
    """The study has not come far enough to say which configuration is best."""


class Unavailable(AutotuneError):
    """A part of the service does not answer; the same call may succeed later."""
