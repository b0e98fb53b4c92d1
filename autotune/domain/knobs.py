"""Knobs: what may be turned, which values it may take, and where it lands at launch.

`None` as a value means *unset*: the knob leaves no trace in env or argv, the engine's own default holds.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, field_validator, model_validator

from autotune.domain.stack import EVERYWHERE, Needs
from autotune.domain.value import Value

Scalar = StrictBool | StrictInt | StrictFloat | StrictStr
KnobValue = Scalar | tuple[Scalar, ...] | None

SERVER = "server"  # the role of a deployment that is one server

# --- landing places -------------------------------------------------------------------------


class EnvVar(Value):
    """A whole environment variable."""

    place: Literal["env"] = "env"
    name: str


class EnvFragment(Value):
    """`key:value` inside a comma-separated variable such as `PYTORCH_NPU_ALLOC_CONF`."""

    place: Literal["env_fragment"] = "env_fragment"
    name: str
    key: str


class Preload(Value):
    """The value names a library of the launch template, which lands in `LD_PRELOAD` by its path."""

    place: Literal["preload"] = "preload"


class Flag(Value):
    """`--flag value`; a list becomes one argument an item, as argparse's `nargs="+"` reads it."""

    place: Literal["flag"] = "flag"
    flag: str


class Switch(Value):
    """A boolean: `on` is passed for true, `off` for false; an empty string passes nothing."""

    place: Literal["switch"] = "switch"
    on: str
    off: str = ""


class Constant(Value):
    """A constant of an engine's module, `package.module:NAME`, set when the server imports the module.

    Nothing that is installed is changed; leaving the knob unset leaves the constant as it is.
    """

    place: Literal["constant"] = "constant"
    target: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


class StackChoice(Value):
    """The value names an entry of the launch template's `stacks`: an image, an environment, a release."""

    place: Literal["stack"] = "stack"


class JsonPath(Value):
    """A dotted path inside the JSON object that a flag takes, for example `--additional-config`."""

    place: Literal["json"] = "json"
    flag: str
    path: str


Landing = Annotated[
    EnvVar | EnvFragment | Preload | Flag | Switch | JsonPath | Constant | StackChoice, Field(discriminator="place")
]

# --- kinds ----------------------------------------------------------------------------------


class BooleanKind(Value):
    """True or false."""

    kind: Literal["boolean"] = "boolean"

    def contains(self, value: KnobValue) -> bool:
        return isinstance(value, bool)

    def describe(self) -> str:
        return "true, false"


class ChoiceKind(Value):
    """One of the listed values; a list value counts as one choice."""

    kind: Literal["choice"] = "choice"
    values: tuple[Scalar | tuple[Scalar, ...], ...] = Field(min_length=1)

    def contains(self, value: KnobValue) -> bool:
        # True == 1 in Python: compare types too, else a boolean would pass as an integer choice.
        return any(type(v) is type(value) and v == value for v in self.values)

    def describe(self) -> str:
        return ", ".join(str(v) for v in self.values)


class IntegerKind(Value):
    """A whole number in [low, high]; `log` says that ratios matter, not differences."""

    kind: Literal["integer"] = "integer"
    low: StrictInt
    high: StrictInt
    step: StrictInt = 1
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> IntegerKind:
        if self.low > self.high or self.step < 1 or (self.log and self.low < 1):
            raise ValueError("needs low <= high, step >= 1, and low >= 1 with log")
        return self

    def contains(self, value: KnobValue) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high and (value - self.low) % self.step == 0

    def describe(self) -> str:
        return f"{self.low}..{self.high}" + (f" step {self.step}" if self.step != 1 else "")


class FloatKind(Value):
    """A real number in [low, high]."""

    kind: Literal["float"] = "float"
    low: float
    high: float
    log: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> FloatKind:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError("needs low < high, and low > 0 with log")
        return self

    def contains(self, value: KnobValue) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return math.isfinite(value) and self.low <= value <= self.high

    def describe(self) -> str:
        return f"{self.low}..{self.high}"


class ListKind(Value):
    """Some of the items, in the order in which they are listed here, each at most once."""

    kind: Literal["list"] = "list"
    items: tuple[Scalar, ...] = Field(min_length=1, max_length=64)
    min_length: StrictInt = Field(default=1, ge=0)
    max_length: StrictInt = Field(default=64, ge=1)

    def contains(self, value: KnobValue) -> bool:
        if not isinstance(value, tuple) or not self.min_length <= len(value) <= self.max_length:
            return False
        rest = iter(self.items)
        return all(any(type(i) is type(v) and i == v for i in rest) for v in value)

    def describe(self) -> str:
        return f"{self.min_length} to {min(self.max_length, len(self.items))} of {', '.join(map(str, self.items))}"


Kind = Annotated[BooleanKind | ChoiceKind | IntegerKind | FloatKind | ListKind, Field(discriminator="kind")]


class Cost(StrEnum):
    """What a change of the knob takes: a new launch, or kernels compiled anew as well."""

    RESTART = "restart"
    REBUILD = "rebuild"


class LimitedValues(Value):
    """Values of a choice that exist on some stacks only."""

    values: tuple[Scalar | tuple[Scalar, ...], ...] = Field(min_length=1)
    needs: Needs


class Knob(Value):
    """One thing that may be turned.

    `when` is a CEL expression over `knobs` and `facts`; where it is false the knob is inactive and unset.
    `risk` is true where a change may alter the numbers that the model computes. `tier`: 1 and 2 are searched
    by default, 3 by name only, 4 never (its `about` says why). `group` names knobs to be moved together,
    `excludes` knobs that may not be set beside this one. `proof` is a regular expression that the server's
    log matches once the setting is really in effect.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    about: str
    type: Kind
    unset: bool = False
    lands: Landing
    role: str = SERVER
    when: str | None = None
    risk: bool = False
    tier: StrictInt = Field(default=1, ge=1, le=4)
    cost: Cost = Cost.RESTART
    group: str | None = None
    excludes: tuple[str, ...] = ()
    needs: Needs = EVERYWHERE
    limited: tuple[LimitedValues, ...] = ()
    default: str = ""
    unit: str = ""
    effect: str = ""
    evidence: str = ""
    source: str = ""
    proof: str | None = None

    @field_validator("proof")
    @classmethod
    def _proof_compiles(cls, proof: str | None) -> str | None:
        try:
            re.compile(proof or "")
        except re.error as error:
            raise ValueError(f"proof is no regular expression: {error}") from error
        return proof

    def contains(self, value: KnobValue) -> bool:
        """Whether this knob may take the value (`None` only where it may be left unset)."""
        return self.unset if value is None else self.type.contains(value)

    def describe(self) -> str:
        """The allowed values, for an error message."""
        return self.type.describe() + (", unset" if self.unset else "")
