"""A space in the making, and its text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.documents.space_keys import key_of
from autotune.domain.knobs import ChoiceKind, EnvVar, Kind, KnobValue, Landing

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*")
_WORDS_OF_YAML = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


@dataclass(frozen=True)
class KnobDraft:
    """A knob to be; `baseline` of None leaves it unset, which `unset` must then allow."""

    name: str
    lands: Landing
    kind: Kind
    unset: bool
    baseline: KnobValue
    group: str | None = None


@dataclass
class Draft:
    """What an importer has found. `notes` say what was left out and why."""

    name: str
    engine: str
    about: str
    source: str
    knobs: list[KnobDraft] = field(default_factory=list)
    fixed: list[tuple[Landing, KnobValue]] = field(default_factory=list)
    derived: list[dict[str, Any]] = field(default_factory=list)
    recipes: list[tuple[str, dict[str, KnobValue]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fresh_name(self, lands: Landing) -> str:
        """A knob's name that no other has yet: `max_num_seqs` for `--max-num-seqs`."""
        key = lands.target if lands.place == "constant" else key_of(lands) or lands.place
        base = re.sub(r"[^a-z0-9]+", "_", key.removeprefix("env ").lower()).strip("_")
        base = base if re.match(r"[a-z]", base) else f"knob_{base}".rstrip("_")
        taken = {knob.name for knob in self.knobs} | {str(setting["name"]) for setting in self.derived}
        name = f"{base}_env" if base in taken and isinstance(lands, EnvVar) else base
        number = 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        return name

    def text(self) -> str:
        """The space as YAML."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"# Imported from {_one_line(self.source)}."
        yield from (f"# Left out: {_one_line(note)}." for note in self.notes)
        for key, value in (("name", self.name), ("engine", self.engine), ("about", self.about)):
            yield f"{key}: {flow(value)}"
        yield "knobs:"
        for knob in self.knobs:
            yield from _item(_knob(knob, self.source))
        if self.fixed:
            yield "fixed:"
            for lands, held in self.fixed:
                yield from _item({"lands": _lands(lands), "value": held})
        if self.derived:
            yield "derived:"
            for entry in self.derived:
                yield from _item(entry)
        yield f"baseline: {flow({knob.name: knob.baseline for knob in self.knobs if knob.baseline is not None})}"
        if self.recipes:
            yield "recipes:"
            for name, values in self.recipes:
                yield from _item({"name": name, "values": values, "source": self.source})


def flow(value: Any) -> str:
    """A value on one line; text is quoted wherever YAML could take it for something else."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(str(key))}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML:
        return value
    return json.dumps(value, ensure_ascii=False)


def _item(entry: Mapping[str, Any]) -> Iterator[str]:
    for index, (key, value) in enumerate(entry.items()):
        yield f"  {'-' if index == 0 else ' '} {key}: {flow(value)}"


def _knob(knob: KnobDraft, source: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": knob.name, "about": f"{key_of(knob.lands) or knob.lands.place} of the server."}
    entry["type"] = {"kind": knob.kind.kind, **knob.kind.model_dump(exclude_defaults=True)}
    if isinstance(knob.kind, ChoiceKind):
        entry["type"]["values"] = knob.kind.values
    if knob.unset:
        entry["unset"] = True
    entry["lands"] = _lands(knob.lands)
    if knob.group is not None:
        entry["group"] = knob.group
    entry["source"] = source
    return entry


def _lands(lands: Landing) -> dict[str, Any]:
    return {"place": lands.place, **lands.model_dump(exclude_defaults=True)}


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
