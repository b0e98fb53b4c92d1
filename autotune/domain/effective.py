"""What a server really runs with, as far as it says so itself.

Settings are named as they are in a launch plan: `env NAME`, `env NAME:fragment`, `--flag`, `--flag dotted.path`,
`LD_PRELOAD`.
"""

from __future__ import annotations

from pydantic import Field

from autotune.domain.knobs import KnobValue
from autotune.domain.value import Value


class Ignored(Value):
    """A setting that the engine did not read. `line` is None where its proof is missing and nothing else is said."""

    setting: str
    line: str | None = None


class Corrected(Value):
    """A setting that the engine replaced by a value of its own. `asked` is None where the plan does not set it."""

    setting: str
    asked: KnobValue = None
    got: KnobValue
    line: str

    def __str__(self) -> str:
        asked = "what it was" if self.asked is None else repr(self.asked)
        return f"the engine runs with {self.setting} = {self.got!r}, not {asked}"


class EffectiveConfig(Value):
    """One role's configuration by its own log.

    `applied` are settings that the server prints. `unproven` are settings with a proof line that could not be
    looked for: the log is too long or says nothing.
    """

    applied: dict[str, KnobValue] = Field(default_factory=dict)
    ignored: tuple[Ignored, ...] = ()
    corrected: tuple[Corrected, ...] = ()
    unproven: tuple[str, ...] = ()
