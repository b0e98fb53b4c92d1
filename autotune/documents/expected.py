"""What a model would have accepted at a place: read off its own annotations, so that it can't go stale."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from autotune.domain.deployment import NAME

_PATTERNS = {
    NAME: "letters, digits, '.', '_' and '-', up to 128, the first a letter or digit",
    r"^[a-z0-9][a-z0-9-]*$": "lower-case letters, digits and '-', the first no '-'",
    r"^[a-z][a-z0-9-]*$": "lower-case letters, digits and '-', the first a letter",
    r"^[a-z][a-z0-9_]*$": "lower-case letters, digits and '_', the first a letter",
}
_LONGEST = 60  # characters of a value that are shown


@dataclass(frozen=True)
class Place:
    """A type with the constraints of the field that holds it."""

    annotation: Any
    metadata: tuple[Any, ...] = ()


def place_of(model: type[BaseModel], location: Sequence[str | int]) -> Place | None:
    """Where pydantic's location leads, union branches included; None where it leads nowhere."""
    place: Place | None = Place(model)
    for part in location:
        place = None if place is None else inside(place, part)
    return place


def is_union(place: Place | None) -> bool:
    """Whether the next part of a location names a branch, and no key or index."""
    return place is not None and get_origin(_bare(place)[0]) in (Union, types.UnionType)


def keys_of(place: Place | None) -> tuple[str, ...]:
    """The keys that a mapping may have here, in the order of the model."""
    return tuple(place.annotation.model_fields) if place and _is_model(place.annotation) else ()


def allowed_values(place: Place | None) -> tuple[str, ...]:
    """Choices or a range; empty where any value of the type does."""
    if place is None:
        return ()
    annotation, metadata = _bare(place)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(str(member.value) for member in annotation)
    if get_origin(annotation) is Literal:
        return tuple(str(value) for value in get_args(annotation))
    if annotation is bool:
        return ("true", "false")
    bounds = {name: value for item in metadata for name in ("ge", "gt", "le", "lt") if (value := _bound(item, name))}
    if "ge" in bounds and "le" in bounds:
        return (f"{bounds['ge']}..{bounds['le']}",)
    words = {"ge": "at least", "gt": "above", "lt": "below", "le": "at most"}
    parts = [f"{words[name]} {bounds[name]}" for name in words if name in bounds]
    return (" and ".join(parts),) if parts else ()


def pattern_in_words(pattern: str) -> str:
    """What a name may look like."""
    return _PATTERNS.get(pattern, f"text that matches {pattern}")


def in_words(value: Any) -> str:
    """A value of a file as a person would name it, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = f"{value:.12g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def inside(place: Place, part: str | int) -> Place | None:
    """One step further along a location."""
    annotation, _ = _bare(place)
    if _is_model(annotation):
        field = annotation.model_fields.get(part)
        return None if field is None else Place(field.annotation, tuple(field.metadata))
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        branches = [_bare(Place(arg))[0] for arg in get_args(annotation)]
        tagged = [b for b in branches if _is_model(b) and part in _tags(b)]
        named = [b for b in branches if isinstance(b, type) and b.__name__ == part]
        return Place((tagged or named)[0]) if tagged or named else None
    arguments = get_args(annotation)
    if origin in (list, tuple) and isinstance(part, int) and arguments:
        return Place(arguments[0])
    if origin is dict:
        return Place(arguments[1])
    return None


def _bare(place: Place) -> tuple[Any, tuple[Any, ...]]:
    """The type without `Annotated`, and without the `None` of an optional value, which is no branch."""
    annotation, metadata = place.annotation, place.metadata
    while True:
        origin = get_origin(annotation)
        branches = [b for b in get_args(annotation) if b is not types.NoneType]
        if origin is Annotated:
            metadata = (*metadata, *annotation.__metadata__)
            annotation = annotation.__origin__
        elif origin in (Union, types.UnionType) and len(branches) == 1:
            annotation = branches[0]
        else:
            return annotation, metadata


def _tags(model: type[BaseModel]) -> set[Any]:
    fields = model.model_fields.values()
    return {tag for f in fields if get_origin(f.annotation) is Literal for tag in get_args(f.annotation)}


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _bound(item: Any, name: str) -> str:
    value = getattr(item, name, None)
    return "" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
