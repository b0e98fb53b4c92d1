"""Renamed, dead and unit-checked settings of a space file: the form of their keys, and doubles among them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from autotune.documents.space_parts import Found, Parts, found_at
from autotune.domain.knobs import EnvFragment, EnvVar, Flag, JsonPath, Landing, Switch
from autotune.domain.stack import EVERYWHERE, Needs

_FORM = re.compile(r"env [A-Za-z_]\w*(:\w+)?|--?[A-Za-z][\w-]*( [^\s.]+(\.[^\s.]+)*)?")
_FORMS = ("env NAME", "env NAME:fragment", "--flag", "--flag dotted.path")


def faulty_keys(parts: Parts) -> Iterator[Found]:
    """Keys that no launch could hold, and entries that say two things of one setting."""
    for path, rename in parts.renames:
        for field, key in (("old", rename.old), ("new", rename.new)):
            yield from _malformed((*path, field), key)
        if rename.old == rename.new:
            yield found_at((*path, "new"), "is the old name", "write the new one")
    for path, dead in parts.dead:
        yield from _malformed((*path, "key"), dead.key)
    for path, unit in parts.units:
        yield from _malformed((*path, "key"), unit.key)
        if unit.low >= unit.high:
            yield found_at((*path, "low"), f"is {unit.low:g} and must be below {unit.high:g}", "turn the range round")
    yield from _doubles("old", "is renamed twice", [(p, r.old, r.needs) for p, r in parts.renames])
    yield from _doubles("key", "is called dead twice", [(p, d.key, d.needs) for p, d in parts.dead])
    yield from _doubles("key", "has two ranges", [(p, u.key, EVERYWHERE) for p, u in parts.units])
    yield from _dead_landings(parts)


def key_of(lands: Landing) -> str | None:
    """The key under which a landing place may stand in `dead`; None for a place that has no such key."""
    match lands:
        case EnvVar():
            return f"env {lands.name}"
        case EnvFragment():
            return f"env {lands.name}:{lands.key}"
        case Flag():
            return lands.flag
        case Switch():
            return lands.on or lands.off
        case JsonPath():
            return f"{lands.flag} {lands.path}"
        case _:
            return None


def _malformed(path: tuple[str | int, ...], key: str) -> Iterator[Found]:
    if not _FORM.fullmatch(key):
        yield found_at(path, f"{key!r} is not of the right form", "", _FORMS)


def _doubles(field: str, message: str, entries: list[tuple[tuple[str | int, ...], str, Needs]]) -> Iterator[Found]:
    """The same key for the same stacks; on different stacks it may well have different fates."""
    seen: list[tuple[str, Needs]] = []
    for path, key, needs in entries:
        if any(k == key and (n == needs or EVERYWHERE in (n, needs)) for k, n in seen):
            yield found_at((*path, field), f"{key} {message}", "keep one of the two, or limit each by `needs`")
        seen.append((key, needs))


def _dead_landings(parts: Parts) -> Iterator[Found]:
    """A knob that lands where the engine never looks."""
    dead = {entry.key for _, entry in parts.dead if entry.needs == EVERYWHERE}
    for path, knob in parts.knobs:
        if key_of(knob.lands) in dead:
            yield found_at((*path, "lands"), "lands in a setting that this space calls dead", "remove one of the two")
