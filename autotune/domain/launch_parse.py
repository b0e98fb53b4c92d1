"""From env and argv that somebody runs to the candidate that they mean: the way back from `launch_plan.render`."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.domain import expression
from autotune.domain.engine_spellings import DEPLOYMENT, SECRETS, first_spelling, is_of_the_template
from autotune.domain.guessed_facts import MODEL_FACTS, guessed_facts
from autotune.domain.instance import instantiate
from autotune.domain.knob_text import as_written
from autotune.domain.knobs import ChoiceKind, Knob, KnobValue, Switch
from autotune.domain.landing_index import Landings, covers
from autotune.domain.launch_plan import RolePlan
from autotune.domain.launch_settings import MODEL, Setting, inner_settings, settings_of
from autotune.domain.parsed_launch import Finding, FindingSeverity, GivenSetting, ParsedLaunch, RenamedSetting
from autotune.domain.space import DerivedSetting, SearchSpace, Severity
from autotune.domain.stack import StackVersions

DECODE, ROUTER = "decode", "router"
_SEVERITIES: Mapping[Severity, FindingSeverity] = {
    Severity.REFUSE: "refuse",
    Severity.DERIVE: "derive",
    Severity.REPAIR: "repair",
    Severity.WARN: "warn",
    Severity.ARM: "arm",
}

__all__ = [
    "Finding",
    "GivenSetting",
    "ParsedLaunch",
    "RenamedSetting",
    "baseline_values",
    "parse",
]


def parse(
    space: SearchSpace,
    roles: Mapping[str, RolePlan],
    stack: StackVersions | None = None,
    facts: Mapping[str, Any] | None = None,
) -> ParsedLaunch:
    """Read the launch of every role. Nothing is repaired: rules that do not hold are findings.

    `argv` may begin with the program and the model. `stack` lies over the space's own. `facts` are those of a
    study where there is one; else they are guessed from the launch.
    """
    return _Parse(space, (stack or StackVersions()).over(space.stack), roles).result(facts)


def baseline_values(space: SearchSpace, parsed: ParsedLaunch) -> dict[str, KnobValue]:
    """The candidate as a study's baseline: what the space's own baseline sets and the launch does not, is unset."""
    absent = {k.name: None for k in space.knobs if k.unset and space.baseline.get(k.name) is not None}
    return {**absent, **parsed.candidate}


class _Parse:
    def __init__(self, space: SearchSpace, stack: StackVersions, roles: Mapping[str, RolePlan]) -> None:
        self._stack = stack
        self._whole = space
        self._space = instantiate(space, stack, include=("tier3",)).space
        self._landings = Landings(space, self._space)
        self._values: dict[str, KnobValue] = {}
        self._roles_of_engine: dict[str, tuple[Setting, ...]] = {}
        self._derived: dict[str, GivenSetting] = {}
        self._fixed: list[GivenSetting] = []
        self._unknown: list[GivenSetting] = []
        self._unread: list[GivenSetting] = []
        self._renamed: list[RenamedSetting] = []
        self._findings: dict[Finding, None] = {}
        self._sources: dict[str, _Entry] = {}
        self._untold: frozenset[str] = frozenset()
        self._pending: dict[str, str] = {}
        for name, plan in roles.items():
            self._read_role(name, self._role(name, roles), plan)

    def result(self, facts: Mapping[str, Any] | None) -> ParsedLaunch:
        if facts is None:
            known, self._untold = guessed_facts(self._roles_of_engine)
        else:
            known = dict(facts)
        candidate = self._with_conditions(known)
        self._without_derived(candidate, known)
        self._judge(candidate, known)
        return ParsedLaunch(
            candidate={name: value for name, value in candidate.items() if value is not None},
            fixed=tuple(self._fixed),
            unknown=tuple(self._unknown),
            unread=tuple(self._unread),
            renamed=tuple(self._renamed),
            findings=tuple(self._findings),
        )

    def _find(self, rule: str, severity: FindingSeverity, message: str) -> None:
        self._findings[Finding(rule=rule, severity=severity, message=message)] = None

    # --- settings ---------------------------------------------------------------------------

    def _role(self, name: str, roles: Collection[str]) -> str:
        """The space's role that a role of the launch is, or stands in for.

        To a space of single servers, a lone engine is the server, and of several the one that decodes.
        """
        known = self._landings.roles
        if name in known or name == ROUTER:
            return name
        engines = [role for role in roles if role != ROUTER]
        if len(known) == 1 and (len(engines) == 1 or name == DECODE):
            return next(iter(known))
        text = f"the space knows no role {name}, only {', '.join(sorted(known))}: nothing of it is searched"
        self._find("unknown-role", "warn", text)
        return name

    def _read_role(self, name: str, role: str, plan: RolePlan) -> None:
        place = _Place(name, self._landings.stand_in(role), searched=role in self._landings.roles)
        reading = settings_of(plan, self._landings.arity(place.role))
        for rule, severity, message in reading.notices:
            self._find(rule, severity, message)
        self._roles_of_engine[role] = tuple(reading.settings)
        for setting in reading.settings:
            self._read(place, setting)
        if place.searched:
            self._switches_left_off(role, {s.key for s in reading.settings})

    def _read(self, place: _Place, setting: Setting) -> None:
        old = setting.key
        setting = self._under_its_present_name(place, setting)
        key = setting.key
        if key != old and isinstance(setting.content, dict):
            for inner in inner_settings(setting, self._landings.arity(place.role)):
                self._read(place, inner)
            return
        given = _Entry(place.name, setting)
        for dead in self._whole.dead:
            if covers(dead.key, key) and dead.needs.missing(self._stack) is None:
                self._unread.append(given(dead.why, dead.mend))
                return
        self._check_unit(setting)
        if "$" in setting.text and not is_of_the_template(key) and key not in (MODEL, "argument"):
            self._find("unresolved", "warn", f"{key}: {setting.text} holds what only the shell knows, and is not read")
            self._unknown.append(given("its value is known to the shell only"))
            return
        knobs = self._landings.knobs(place.role, setting)
        if knobs and not place.searched:
            self._fixed.append(given(f"the space searches nothing in role {place.name}"))
        elif knobs:
            self._read_knob(place, setting, knobs, given)
        else:
            self._sort(place, setting, given)

    def _sort(self, place: _Place, setting: Setting, given: _Entry) -> None:
        """Puts a setting that no knob of the stack takes into its list."""
        key, role = setting.key, place.role
        if fixed := self._landings.fixed(role, key):
            self._fixed.append(given(f"fixed by the space{f': {fixed.about}' if fixed.about else ''}"))
            if fixed.value != as_written(setting) and str(fixed.value).lower() != setting.text.lower():
                text = f"{key} is {setting.text} here, and {_word(fixed.value)} in every launch of the space"
                self._find("fixed-differs", "warn", text)
        elif derived := self._landings.derived(role, key):
            entry = given(f"derived by the space as {derived.name}")
            self._fixed.append(entry)
            if place.searched:
                self._derived[derived.name] = entry
        elif left_out := self._landings.left_out(role, key):
            if left_out.tier == 4 and left_out.needs.missing(self._stack) is None:
                self._fixed.append(given(f"not searched: {left_out.about}"))
            else:
                self._unread.append(given(left_out.needs.missing(self._stack) or "no value of it exists here"))
        elif is_of_the_template(key) or key == MODEL:
            self._fixed.append(given("belongs to the launch template or the host"))
        elif first_spelling(key) in DEPLOYMENT:
            self._fixed.append(given("belongs to the study's deployment"))
        elif right := self._landings.right_place(role, key):
            flag, _, path = right.partition(" ")
            outer = path.rpartition(".")[0]
            inside = f"{outer} of {flag}" if outer else f"the top level of {flag}"
            self._unread.append(given("nothing reads it at this place", f"it belongs to {inside}: write {right}"))
            self._find("wrong-nesting", "warn", f"{key} is not read; it belongs to {inside}")
        else:
            self._unknown.append(given())

    def _under_its_present_name(self, place: _Place, setting: Setting) -> Setting:
        for rename in self._whole.renames:
            key = setting.key
            if covers(rename.old, key) and rename.needs.missing(self._stack) is None:
                new = rename.new + key.removeprefix(rename.old)
                value = as_written(setting)
                entry = RenamedSetting(role=place.name, old=key, new=new, value=value, about=rename.about)
                self._renamed.append(entry)
                setting = _moved(setting, new)
        return setting

    def _check_unit(self, setting: Setting) -> None:
        value = as_written(setting)
        for unit in self._whole.units:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if unit.key == setting.key and number and not unit.low <= float(str(value)) <= unit.high:
                text = f"{unit.key}={value} is outside of {unit.low:g}..{unit.high:g} {unit.unit}: {unit.why}"
                self._find("unit", "warn", text)

    def _read_knob(self, place: _Place, setting: Setting, knobs: Sequence[Knob], given: _Entry) -> None:
        wrong = ""
        for knob in knobs:
            try:
                value = self._landings.value(knob, setting)
            except ValueError as error:
                wrong = wrong or f"{setting.key}: {error}; knob {knob.name} takes {knob.describe()}"
                continue
            if not knob.contains(value):
                if knob.unset and _is_default(knob, setting):
                    text = f"{setting.key}={setting.text} is the engine's default: the same as unset"
                    self._find("default", "note", text)
                    return
                shown = f"{setting.key}={setting.text or value}"
                wrong = wrong or f"{shown} is outside of knob {knob.name}, which takes {knob.describe()}"
            elif knob.name in self._whole.hold and self._whole.hold[knob.name] != value:
                self._fixed.append(given(f"the space holds {knob.name} at {self._whole.hold[knob.name]}"))
                return
            else:
                self._values[knob.name] = value
                self._sources[knob.name] = given
                return
        if derived := self._landings.derived(place.role, setting.key):
            self._pending[derived.name] = wrong  # it may be what the space derives
            self._derived[derived.name] = given(f"derived by the space as {derived.name}")
            self._fixed.append(self._derived[derived.name])
            return
        self._find("out-of-range", "warn", wrong)
        self._unknown.append(given("its value is outside of the knob's range"))

    def _switches_left_off(self, role: str, keys: set[str]) -> None:
        """A switch of which one side passes nothing is on that side where no word is there."""
        for knob in self._space.knobs:
            lands = knob.lands
            if knob.role == role and isinstance(lands, Switch) and not knob.unset and not {lands.on, lands.off} & keys:
                value = not lands.on if not (lands.on and lands.off) else None
                if value is not None:
                    self._values.setdefault(knob.name, value)

    # --- conditions and rules ---------------------------------------------------------------

    def _with_conditions(self, facts: Mapping[str, Any]) -> dict[str, KnobValue]:
        """The values of all knobs: unset where a condition fails, the baseline's where one may not be unset."""
        current = {**dict.fromkeys(self._space.absent), **{k.name: self._values.get(k.name) for k in self._space.knobs}}
        inactive: dict[str, None] = {}
        filled: dict[str, None] = {}
        for _ in self._space.knobs:
            before = dict(current)
            for knob in self._space.knobs:
                active = self._is_active(knob, current, facts)
                if not active and current[knob.name] is not None:
                    current[knob.name] = None
                    inactive[knob.name] = None
                elif active and current[knob.name] is None and not knob.unset:
                    current[knob.name] = self._values.get(knob.name, self._space.baseline.get(knob.name))
                    filled[knob.name] = None
            if current == before:
                break
        for name in inactive:
            knob = self._space.by_name[name]
            if name in self._values and current[name] is None:
                text = f"{name}={self._values[name]} has no effect in this launch (it counts when {knob.when})"
                self._find("inactive", "warn", text)
                if name in self._sources:
                    self._fixed.append(self._sources[name](f"no effect here: it counts when {knob.when}"))
        for name in filled:
            if name not in self._values and current[name] is not None:
                text = f"{name} is not set in the launch; {current[name]} of the space's baseline stands for it"
                self._find("not-set", "note", text)
        return current

    def _is_active(self, knob: Knob, values: Mapping[str, KnobValue], facts: Mapping[str, Any]) -> bool:
        """Whether the knob's condition holds; what somebody sets counts where the launch can't tell."""
        if knob.when is not None and any(f"facts.{name}" in knob.when for name in self._untold):
            return knob.name in self._values
        return self._holds(f"knob {knob.name}", knob.when, values, facts)

    def _without_derived(self, values: dict[str, KnobValue], facts: Mapping[str, Any]) -> None:
        """A knob that says what the space derives where it is unset, is unset: one launch has one name."""
        for name, given in self._sources.items():
            knob = self._space.by_name[name]
            derived = self._landings.derived(knob.role, given.setting.key) if knob.unset else None
            if derived is None or values[name] is None:
                continue
            for setting, computed in self._computed([derived], {**values, name: None}, facts):
                if _alike(computed, values[name]):
                    values[name] = None
                    self._fixed.append(given(f"derived by the space as {setting.name}"))

    def _judge(self, values: Mapping[str, KnobValue], facts: Mapping[str, Any]) -> None:
        for knob in self._space.knobs:
            for name in knob.excludes if values[knob.name] is not None else ():
                if values.get(name) is not None:
                    self._find(f"{knob.name}-excludes-{name}", "repair", f"{name} may not be set beside {knob.name}")
        for rule in self._space.rules:
            if rule.severity is Severity.DERIVE or self._holds(f"rule {rule.name}", rule.require, values, facts):
                continue
            change = f" (a study would set {', '.join(rule.change)})" if rule.change else ""
            limit = (
                f" (a study ends a launch that is silent for {rule.stall_limit_s:g} s)" if rule.stall_limit_s else ""
            )
            self._find(rule.name, _SEVERITIES[rule.severity], f"{rule.why}; {rule.mend}{change}{limit}")
        told = [setting for setting in self._space.derived if setting.name in self._derived]
        for setting, computed in self._computed(told, values, facts):
            entry = self._derived[setting.name]
            out_of_range = self._pending.pop(setting.name, None)
            if _alike(computed, entry.value):
                continue
            if out_of_range is not None:
                self._find("out-of-range", "warn", out_of_range)
            broken = next((r.name for r in self._space.rules if r.derived == setting.name), None)
            text = f"{entry.key} is {_word(entry.value)} here; the space computes {_word(computed)} ({setting.name})"
            self._find(broken or "derived-differs", "derive" if broken else "note", text)
        for text in self._pending.values():
            self._find("out-of-range", "warn", text)

    def _computed(
        self, settings: Iterable[DerivedSetting], values: Mapping[str, KnobValue], facts: Mapping[str, Any]
    ) -> Iterator[tuple[DerivedSetting, KnobValue]]:
        for setting in settings:
            try:
                if setting.when is None or expression.holds(setting.when, values, facts):
                    value = expression.evaluate(setting.value, values, facts)
                    yield setting, tuple(value) if isinstance(value, list) else value
            except expression.ExpressionError:
                continue  # it needs a fact of the study that no launch tells

    def _holds(self, what: str, text: str | None, values: Mapping[str, KnobValue], facts: Mapping[str, Any]) -> bool:
        """The condition, taken as kept where it needs a fact that the launch does not tell."""
        if text is None:
            return True
        if any(f"facts.{name}" in text for name in self._untold - {MODEL_FACTS}):
            return True
        try:
            return expression.holds(text, values, facts)
        except expression.ExpressionError as error:
            self._find("not-judged", "note", f"{what} can't be judged from a launch alone: {error}")
            return True


@dataclass(frozen=True, slots=True)
class _Place:
    """A role of the launch, and the role of the space whose settings it has."""

    name: str
    role: str
    searched: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    """Makes the entry of a setting for one of the lists."""

    role: str
    setting: Setting

    def __call__(self, why: str = "", mend: str = "") -> GivenSetting:
        shown = "***" if first_spelling(self.setting.key) in SECRETS else as_written(self.setting)
        return GivenSetting(role=self.role, key=self.setting.key, value=shown, why=why, mend=mend)


def _is_default(knob: Knob, setting: Setting) -> bool:
    """Whether the setting only says what holds without it."""
    only_true = isinstance(knob.type, ChoiceKind) and knob.type.values == (True,)
    word = setting.text.lower()
    return word == knob.default.lower() != "" or (only_true and word in ("false", "0"))


def _moved(setting: Setting, key: str) -> Setting:
    return Setting(key, setting.words, setting.content, setting.typed, setting.negated)


def _alike(one: KnobValue, other: KnobValue) -> bool:
    """Whether both mean the same to an engine: of a list, neither order nor repetition counts."""

    def items(value: KnobValue) -> set[str]:
        return {json.dumps(item) for item in (value if isinstance(value, tuple) else (value,))}

    return items(one) == items(other)


def _word(value: KnobValue) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
