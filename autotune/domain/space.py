"""A search space: knobs, fixed settings, derived settings, rules, baseline and recipes of one stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field, field_validator, model_validator

from autotune.domain import expression
from autotune.domain.candidate import Candidate
from autotune.domain.knobs import SERVER, Knob, KnobValue, Landing
from autotune.domain.stack import EVERYWHERE, Needs, StackVersions
from autotune.domain.value import Value
from autotune.errors import InvalidCandidate, Problem

MAX_PASSES = 10


class FixedSetting(Value):
    """A setting that every candidate of the space carries."""

    lands: Landing
    value: KnobValue
    role: str = SERVER
    about: str = ""
    needs: Needs = EVERYWHERE


class DerivedSetting(Value):
    """A setting computed from knobs and facts, so that coupled things can't drift apart."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    lands: Landing
    value: str
    when: str | None = None
    role: str = SERVER
    about: str = ""
    source: str = ""
    needs: Needs = EVERYWHERE


class Severity(StrEnum):
    """What happens to a candidate for which the rule's condition does not hold.

    `refuse` only what the pinned engine itself refuses. `derive` says that a derived setting keeps the rule.
    `arm`: reported to hang or fail somewhere, yet published as good elsewhere: searched, with a stall limit.
    """

    REFUSE = "refuse"
    DERIVE = "derive"
    REPAIR = "repair"
    WARN = "warn"
    ARM = "arm"


class Rule(Value):
    """A named condition over knobs and facts.

    `change` maps a knob to the expression that mends it (repair), `derived` names the setting that keeps the
    rule (derive), `stall_limit_s` ends a launch without a new log line for so long (arm).
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    severity: Severity
    require: str
    why: str
    mend: str
    source: str = ""
    change: dict[str, str] = Field(default_factory=dict)
    derived: str | None = None
    stall_limit_s: float | None = Field(default=None, gt=0)
    needs: Needs = EVERYWHERE

    @model_validator(mode="after")
    def _has_what_its_severity_takes(self) -> Rule:
        for severity, key, given in (
            (Severity.REPAIR, "change", bool(self.change)),
            (Severity.DERIVE, "derived", self.derived is not None),
            (Severity.ARM, "stall_limit_s", self.stall_limit_s is not None),
        ):
            if (self.severity is severity) != given:
                raise ValueError(f"a rule of severity {severity}, and only such a rule, needs `{key}`")
        return self


class NamedCandidate(Value):
    """A candidate that somebody reported, worth a launch of its own."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    values: dict[str, KnobValue]
    about: str = ""
    source: str = ""


class Rename(Value):
    """A setting that a version of the engine knows by another name. `old` and `new` are keys as in `DeadSetting`."""

    old: str
    new: str
    needs: Needs = EVERYWHERE
    about: str = ""


class DeadSetting(Value):
    """A setting that the engine does not read.

    `key` is `env NAME`, `env NAME:fragment`, `--flag`, or `--flag dotted.path` for a key in a JSON flag.
    """

    key: str
    why: str
    mend: str = ""
    needs: Needs = EVERYWHERE


class UnitRange(Value):
    """The range in which a setting makes sense in its unit; outside of it the unit was probably mistaken."""

    key: str
    low: float
    high: float
    unit: str
    why: str


class Settled(Value):
    """A proposal after conditions and rules: what will really be launched, and what was changed."""

    candidate: Candidate
    repairs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    stall_limit_s: float | None = None


class SearchSpace(Value):
    """Everything that is known about one serving stack on one chip. Data, checked when it is made.

    `stack` is what the space is pinned to where a study names nothing else. `absent` names knobs that an
    instance left out: expressions see them as unset.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    engine: str
    chip: str = ""
    about: str
    knobs: tuple[Knob, ...] = Field(min_length=1)
    fixed: tuple[FixedSetting, ...] = ()
    derived: tuple[DerivedSetting, ...] = ()
    rules: tuple[Rule, ...] = ()
    baseline: dict[str, KnobValue]
    recipes: tuple[NamedCandidate, ...] = ()
    hold: dict[str, KnobValue] = Field(default_factory=dict)
    stack: StackVersions = StackVersions()
    absent: tuple[str, ...] = ()
    renames: tuple[Rename, ...] = ()
    dead: tuple[DeadSetting, ...] = ()
    units: tuple[UnitRange, ...] = ()

    @field_validator("knobs", "derived", "rules", "recipes")
    @classmethod
    def _distinct_names(cls, items: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [item.name for item in items]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"defined twice: {', '.join(twice)}")
        return items

    @model_validator(mode="after")
    def _hangs_together(self) -> SearchSpace:
        for where, text in self._expressions():
            try:
                expression.check(text)
            except expression.ExpressionError as error:
                raise ValueError(f"{where}: {error}") from error
        known = self.by_name.keys() | set(self.absent)
        settings = {setting.name for setting in self.derived}
        for rule in self.rules:
            for name in rule.change:
                if name not in known:
                    raise ValueError(f"rule {rule.name} changes an unknown knob {name}")
            if rule.derived is not None and rule.derived not in settings:
                raise ValueError(f"rule {rule.name} names an unknown derived setting {rule.derived}")
        for knob in self.knobs:
            for name in knob.excludes:
                if name not in known:
                    raise ValueError(f"knob {knob.name} excludes an unknown knob {name}")
        written = {"baseline": self.baseline, **{f"recipe {r.name}": self.complete(r.values) for r in self.recipes}}
        for where, values in written.items():
            problems = self.problems(values)
            if problems:
                raise ValueError(f"{where}: {problems[0]}")
        return self

    def _expressions(self) -> Iterator[tuple[str, str]]:
        for knob in self.knobs:
            if knob.when:
                yield f"knob {knob.name}, when", knob.when
        for setting in self.derived:
            yield f"derived {setting.name}", setting.value
            if setting.when:
                yield f"derived {setting.name}, when", setting.when
        for rule in self.rules:
            yield f"rule {rule.name}, require", rule.require
            for name, text in rule.change.items():
                yield f"rule {rule.name}, change {name}", text

    @property
    def by_name(self) -> dict[str, Knob]:
        return {knob.name: knob for knob in self.knobs}

    def problems(self, values: Mapping[str, KnobValue]) -> list[Problem]:
        """Unknown knobs and values out of range, all at once; empty when there are none."""
        known = self.by_name
        found: list[Problem] = []
        for name, value in values.items():
            if name not in known:
                found.append(Problem(key=name, message="unknown knob", allowed=tuple(sorted(known))))
            elif not known[name].contains(value):
                text = f"{value!r} is not a value of this knob"
                found.append(Problem(key=name, message=text, allowed=(known[name].describe(),)))
        for name, knob in known.items():
            if name not in values and not knob.unset and not knob.when:
                text = "has no value and may not be left unset"
                found.append(Problem(key=name, message=text, allowed=(knob.describe(),)))
        return found

    def complete(self, values: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
        """The baseline with the given values on top: how recipes and files may be written short.

        Knobs that are held keep their value whatever is given.
        """
        return {**self.baseline, **values, **self.hold}

    def free_knobs(self) -> list[Knob]:
        """The knobs that a search may turn."""
        return [knob for knob in self.knobs if knob.name not in self.hold]

    def is_active(self, knob: Knob, values: Mapping[str, KnobValue], facts: Mapping[str, Any]) -> bool:
        """Whether the knob's condition holds for these values."""
        return knob.when is None or expression.holds(knob.when, self._all(values), facts)

    def settle(self, values: Mapping[str, KnobValue], facts: Mapping[str, Any]) -> Settled:
        """Apply conditions and rules until nothing changes.

        Raises InvalidCandidate for an unknown knob, a value out of range, or a broken rule of severity refuse.
        """
        problems = self.problems(values)
        if problems:
            raise InvalidCandidate("the candidate does not fit the space", problems)
        current = self._all(values)
        repairs: dict[str, None] = {}
        for _ in range(MAX_PASSES):
            before = dict(current)
            for knob in self.knobs:
                if not self.is_active(knob, current, facts):
                    current[knob.name] = None
                elif current[knob.name] is None and not knob.unset:
                    current[knob.name] = self.baseline.get(knob.name)
            for knob in self.knobs:
                for name in knob.excludes if current[knob.name] is not None else ():
                    if current.get(name) is not None and self.by_name[name].unset:
                        current[name] = None
                        repairs[f"{knob.name}-excludes-{name}"] = None
            for rule in self.rules:
                if rule.severity is Severity.REPAIR and not self._kept(rule, current, facts):
                    changes = {n: text for n, text in rule.change.items() if n not in self.absent}
                    for name, text in changes.items():
                        current[name] = _as_value(expression.evaluate(text, current, facts))
                    repairs[rule.name] = None
            if current == before:
                break
        broken = [r for r in self.rules if not self._kept(r, current, facts)]
        restless = [r.name for r in broken if r.severity is Severity.REPAIR]
        if restless:
            raise InvalidCandidate(
                "the rules do not come to rest",
                [Problem(key=name, message="is broken again by another rule's repair") for name in restless],
            )
        refused = [Problem(key=r.name, message=r.why, mend=r.mend) for r in broken if r.severity is Severity.REFUSE]
        if refused:
            raise InvalidCandidate("the candidate breaks a rule of the space", refused)
        limits = [r.stall_limit_s for r in broken if r.stall_limit_s is not None]
        return Settled(
            candidate=Candidate(values={n: v for n, v in current.items() if n not in self.absent}),
            repairs=tuple(repairs),
            warnings=tuple(f"{r.name}: {r.why}" for r in broken if r.severity in {Severity.WARN, Severity.ARM}),
            stall_limit_s=min(limits, default=None),
        )

    def derived_values(self, candidate: Candidate, facts: Mapping[str, Any]) -> list[tuple[DerivedSetting, KnobValue]]:
        """Every derived setting that applies, with its value."""
        values = self._all(candidate.values)
        found: list[tuple[DerivedSetting, KnobValue]] = []
        for setting in self.derived:
            if setting.when is None or expression.holds(setting.when, values, facts):
                found.append((setting, _as_value(expression.evaluate(setting.value, values, facts))))
        return found

    def _all(self, values: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
        return {**dict.fromkeys(self.absent), **{knob.name: values.get(knob.name) for knob in self.knobs}}

    def _kept(self, rule: Rule, values: Mapping[str, KnobValue], facts: Mapping[str, Any]) -> bool:
        return rule.severity is Severity.DERIVE or expression.holds(rule.require, values, facts)


def _as_value(value: Any) -> KnobValue:
    return tuple(value) if isinstance(value, list) else value
