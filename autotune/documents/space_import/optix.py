"""The fields that OptiX of Ascend's msmodeling searches: `[[vllm.target_field]]` of its `config.toml`.

A field that `[vllm.command] others` names as `$FIELD` lands where it stands there, MAX_NUM_SEQS and
MAX_NUM_BATCHED_TOKENS land in their options, every other one in the environment variable of its name.
CONCURRENCY and REQUESTRATE are the load.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

from autotune.documents.space_import.draft import Draft, KnobDraft
from autotune.documents.space_import.optix_words import places_of, record_of, split
from autotune.documents.space_import.records import Refused, add_knobs, distinct, is_owned
from autotune.documents.yaml_text import dotted
from autotune.domain.knobs import (
    BooleanKind,
    ChoiceKind,
    EnvVar,
    Flag,
    FloatKind,
    IntegerKind,
    Kind,
    KnobValue,
    Landing,
)
from autotune.domain.template import is_denied_env
from autotune.errors import Problem

BUILT_IN = {
    "MAX_NUM_BATCHED_TOKENS": Flag(flag="--max-num-batched-tokens"),
    "MAX_NUM_SEQS": Flag(flag="--max-num-seqs"),
}
LOAD = frozenset({"CONCURRENCY", "REQUESTRATE"})
DERIVED = frozenset({"ratio", "share", "factories", "times", "ternary_factories", "ternary_times"})
OTHERS = "vllm.command.others"


def read_optix(text: str, draft: Draft) -> list[Problem]:
    """Fill the draft. `value` of each field is the baseline."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        return [Problem("toml", f"is not TOML: {error}", line=int(at[1]) if at else None)]
    engine = data.get("vllm")
    fields = engine.get("target_field") if isinstance(engine, Mapping) else None
    if not isinstance(fields, list) or not fields:
        others = ", ".join(key for key, part in data.items() if isinstance(part, Mapping) and "target_field" in part)
        mend = f"fields of {others} land in a file of that engine, which a space can't set" if others else ""
        return [Problem("vllm.target_field", "is missing", mend)]
    return _Reader(draft, dict(engine or {}), fields).read()


class _Reader:
    """One `[vllm]` section on its way into a draft."""

    def __init__(self, draft: Draft, engine: Mapping[str, Any], fields: list[Any]) -> None:
        self.draft = draft
        command = engine.get("command")
        self.others = str(command.get("others", "")) if isinstance(command, Mapping) else ""
        self.fields = fields
        self.known: dict[str, str] = {}  # field to the expression that gives its value
        self.may_be_unset: set[str] = set()

    def read(self) -> list[Problem]:
        problems: list[Problem] = []
        alone = {f"${f['name'].upper()}" for f in self.fields if _is_field(f) and _holds_options(f)}
        try:
            places, rest = places_of(split(self.others, OTHERS), alone, OTHERS)
            self.draft.fixed += record_of(rest, OTHERS).items()
        except Refused as refused:
            return [refused.problem]
        owned = {flag.flag for flag in places.values() if isinstance(flag, Flag) and is_owned(flag.flag)}
        later: list[Mapping[str, Any]] = []
        for index, field in enumerate(self.fields):
            where = ("vllm", "target_field", index)
            if not _is_field(field):
                problems.append(Problem(dotted(where), "needs a name", 'write name = "..."'))
                continue
            try:
                if field.get("dtype") in DERIVED:
                    later.append(field)
                elif field["name"].upper() in LOAD:
                    self.draft.notes.append(f"{field['name']}, which is the load: the study's workload sets it")
                else:
                    self._field(field, places.get(field["name"].upper()), where, owned)
            except Refused as refused:
                problems.append(refused.problem)
        for field in later:
            self._derived(field, places.get(field["name"].upper()))
        for name in places.keys() - {f["name"].upper() for f in self.fields if _is_field(f)}:
            self.draft.notes.append(f"${name} of {OTHERS}, which no target_field describes")
        return problems

    def _field(self, field: Mapping[str, Any], place: Landing | None, where: tuple[Any, ...], owned: set[str]) -> None:
        name = field["name"].upper()
        lands = place or BUILT_IN.get(name) or EnvVar(name=name)
        if (isinstance(lands, EnvVar) and is_denied_env(lands.name)) or (
            isinstance(lands, Flag) and lands.flag in owned
        ):
            self.draft.notes.append(f"{field['name']}, which the launch template of the host sets")
            return
        if field.get("dtype") == "enum" and _holds_options(field):
            self._options(field, where)
            return
        values = _fixed_value(field)
        kind = None if values is not None else _kind(field, where)
        if isinstance(kind, ChoiceKind) and len(kind.values) == 1 and "" not in _candidates(field):
            values = kind.values[0]
        if values is not None:
            self.draft.fixed.append((lands, values))
            self.known[name] = str(values)
            return
        assert kind is not None
        unset = "" in _candidates(field)
        baseline = _as_value(field.get("value"))
        if unset and baseline == "":
            baseline = None
        elif not kind.contains(baseline):
            first = _nearest(kind, baseline)
            if "value" in field:
                self.draft.notes.append(
                    f"value {baseline} of {field['name']}, not in its range: the baseline is {first}"
                )
            baseline = first
        knob = KnobDraft(self.draft.fresh_name(lands), lands, kind, unset, baseline)
        self.draft.knobs.append(knob)
        self.known[name] = f"knobs.{knob.name}"
        self.may_be_unset |= {knob.name} if unset else set()

    def _options(self, field: Mapping[str, Any], where: tuple[Any, ...]) -> None:
        """Each candidate is a piece of command line: one knob for each option in which they differ."""
        candidates = _candidates(field)
        value = field.get("value", candidates[0])
        ordered = [value, *(c for c in candidates if c != value)] if value in candidates else candidates
        key = dotted((*where, "dtype_param"))
        records = [record_of(split(str(text), key), key) for text in ordered]
        several = len({lands for record in records for lands in record}) > 1
        add_knobs(self.draft, records, field["name"].lower() if several else None)

    def _derived(self, field: Mapping[str, Any], place: Landing | None) -> None:
        parameters = field.get("dtype_param")
        parameters = {"target_name": parameters} if isinstance(parameters, str) else parameters or {}
        targets = parameters.get("target_names") or [parameters.get("target_name")]
        operands = [self.known.get(str(target).upper(), "") for target in targets]
        text = _expression(field, parameters, operands, self.fields, targets)
        if text is None or not all(operands):
            self.draft.notes.append(f"{field['name']}, of dtype {field['dtype']}: a space can't derive it so")
            return
        lands = place or EnvVar(name=field["name"].upper())
        setting = {"name": self.draft.fresh_name(lands), "lands": {"place": lands.place, **lands.model_dump()}}
        setting["value"] = text
        conditions = [f"{o} != null" for o in operands if o.removeprefix("knobs.") in self.may_be_unset]
        if conditions:
            setting["when"] = " && ".join(conditions)
        self.draft.derived.append(setting)


def _is_field(field: Any) -> bool:
    return isinstance(field, Mapping) and isinstance(field.get("name"), str) and bool(field["name"])


def _candidates(field: Mapping[str, Any]) -> list[Any]:
    listed = field.get("dtype_param")
    return listed if isinstance(listed, list) else []


def _holds_options(field: Mapping[str, Any]) -> bool:
    """Whether the candidates are pieces of command line rather than values."""
    given = [value for value in _candidates(field) if value != ""]
    return bool(given) and all(isinstance(value, str) and value.lstrip().startswith("-") for value in given)


def _fixed_value(field: Mapping[str, Any]) -> KnobValue:
    if field.get("constant") is not None:
        return _as_value(field["constant"])
    if field.get("dtype") in ("int", "float", "range") and field.get("min") == field.get("max"):
        return _as_value(field.get("min"))
    return None


def _kind(field: Mapping[str, Any], where: tuple[Any, ...]) -> Kind:
    dtype, low, high = field.get("dtype"), field.get("min"), field.get("max")
    try:
        match dtype:
            case "bool":
                return BooleanKind()
            case "enum":
                values = [_as_value(value) for value in _candidates(field) if value != ""]
                return ChoiceKind(values=tuple(v for v in distinct(values) if v is not None))
            case "int":
                return IntegerKind(low=_whole(low), high=_whole(high))
            case "float":
                return FloatKind(low=float(str(low)), high=float(str(high)))
            case "range":
                step = _whole(field.get("dtype_param"))
                return IntegerKind(
                    low=_whole(low), high=_whole(low) + (_whole(high) - _whole(low)) // step * step, step=step
                )
            case _:
                raise Refused((*where, "dtype"), f"{dtype!r} is not known here", "see OptiX's table of dtypes")
    except (ValueError, ArithmeticError) as error:
        message = f"{field['name']} has no range that a knob can take: min {low}, max {high}"
        raise Refused(where, message, "write min below max, and values for enum") from error


def _expression(
    field: Mapping[str, Any],
    parameters: Mapping[str, Any],
    operands: list[str],
    fields: list[Any],
    targets: list[Any],
) -> str | None:
    """None for what has no whole number as its value, or is searched itself."""
    product = parameters.get("product", 1)
    together = " * ".join(operands)
    match field["dtype"]:
        case "times" | "ternary_times" if isinstance(product, int) and parameters.get("dtype", "int") == "int":
            text = f"{product} * {together}"
        case "factories" | "ternary_factories" if isinstance(product, int) and parameters.get("dtype", "int") == "int":
            text = f"{product} / ({together})"
        case "share":
            target: Mapping[str, Any] = next((f for f in fields if _is_field(f) and f["name"] == targets[0]), {})
            if target.get("dtype") not in ("int", "range"):
                return None
            text = f"{target['min'] + target['max']} - {together}"
        case _:
            return None
    for bound, sign in (("min_value", "<"), ("max_value", ">")):
        if isinstance(parameters.get(bound), int):
            text = f"({text}) {sign} {parameters[bound]} ? {parameters[bound]} : ({text})"
    return text


def _nearest(kind: Kind, value: KnobValue) -> KnobValue:
    """The value of the kind that is most like this one; the first where nothing is alike."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    match kind:
        case BooleanKind():
            return bool(value)
        case IntegerKind() if number is not None:
            steps = round((min(max(number, kind.low), kind.high) - kind.low) / kind.step)
            return kind.low + kind.step * min(steps, (kind.high - kind.low) // kind.step)
        case FloatKind() if number is not None:
            return min(max(float(number), kind.low), kind.high)
        case IntegerKind() | FloatKind():
            return kind.low
        case ChoiceKind():
            return kind.values[0]
        case _:
            return None


def _as_value(value: Any) -> KnobValue:
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, bool | int | float | str) else None


def _whole(value: Any) -> int:
    number = int(str(value))
    if isinstance(value, bool):
        raise ValueError(value)
    return number
