"""What can be read of a space file while parts of it are wrong, each part with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from autotune.documents.yaml_text import KeyPath, dotted
from autotune.domain.knobs import Knob
from autotune.domain.space import DeadSetting, DerivedSetting, FixedSetting, Rename, Rule, UnitRange
from autotune.errors import Problem

T = TypeVar("T", bound=BaseModel)
Found = tuple[KeyPath, Problem]


class Parts:
    """The knobs, settings and rules of a space that are right by themselves; the others are reported elsewhere."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.knobs = list(_items(data, "knobs", Knob))
        self.fixed = list(_items(data, "fixed", FixedSetting))
        self.derived = list(_items(data, "derived", DerivedSetting))
        self.rules = list(_items(data, "rules", Rule))
        self.renames = list(_items(data, "renames", Rename))
        self.dead = list(_items(data, "dead", DeadSetting))
        self.units = list(_items(data, "units", UnitRange))
        self.knobs_are_complete = len(self.knobs) == len(listed(data.get("knobs")))
        self.derived_are_complete = len(self.derived) == len(listed(data.get("derived")))
        absent = [name for name in listed(data.get("absent")) if isinstance(name, str)]
        self.knob_names = tuple(sorted({*(knob.name for _, knob in self.knobs), *absent}))


def listed(value: Any) -> list[Any]:
    """The list, empty where there is none."""
    return value if isinstance(value, list) else []


def found_at(path: KeyPath, message: str, mend: str = "", allowed: tuple[str, ...] = ()) -> Found:
    """A problem with its place."""
    return path, Problem(dotted(path), message, mend, allowed)


def _items(data: Mapping[str, Any], key: str, model: type[T]) -> Iterator[tuple[KeyPath, T]]:
    for index, item in enumerate(listed(data.get(key))):
        try:
            yield (key, index), model.model_validate(item)
        except ValidationError:
            continue  # reported by the space itself
