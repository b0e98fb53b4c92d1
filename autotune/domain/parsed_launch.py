"""What a launch that somebody runs means to a search space."""

from __future__ import annotations

from typing import Literal

from autotune.domain.knobs import KnobValue
from autotune.domain.value import Value

FindingSeverity = Literal["refuse", "derive", "repair", "warn", "arm", "note"]


class Finding(Value):
    """Something to know of a launch. `rule` is a rule of the space, or one of the parser's own words for a case.

    `severity` is the rule's own; `note` says what was understood how, and asks for nothing.
    """

    rule: str
    severity: FindingSeverity
    message: str


class GivenSetting(Value):
    """A setting of the launch as it was read; `key` as in `DeadSetting`. `why` says why it is in its list."""

    role: str
    key: str
    value: KnobValue
    why: str = ""
    mend: str = ""


class RenamedSetting(Value):
    """A setting that this version knows by another name, under which it was read on."""

    role: str
    old: str
    new: str
    value: KnobValue
    about: str = ""


class ParsedLaunch(Value):
    """What a launch means to a space.

    `candidate`: the knobs, without those that are unset. `fixed`: what the space fixes, derives or does not
    search, and what belongs to template or deployment. `unknown`: what the space does not know. `unread`: what
    the engine of this stack does not read. `renamed`: old names. `findings`: rules that do not hold and more.
    """

    candidate: dict[str, KnobValue]
    fixed: tuple[GivenSetting, ...] = ()
    unknown: tuple[GivenSetting, ...] = ()
    unread: tuple[GivenSetting, ...] = ()
    renamed: tuple[RenamedSetting, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether the engine would refuse this launch."""
        return any(finding.severity == "refuse" for finding in self.findings)
