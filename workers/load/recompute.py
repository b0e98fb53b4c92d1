"""`python -m workers.load.recompute FOLDER [--json]`: an attempt's figures again from its raw streams.

Prints what the present definitions make of them, against what is stored. Ends with 0, and with 1 and the reason on
standard error where there is nothing to compute from.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.domain.job import TrialOutcome
from autotune.domain.measurement import Measurement, RequestSample
from autotune.domain.value import Value
from autotune.domain.workload import Workload
from workers.conclusions import measured
from workers.load.process import RESULT_FILE, SPEC_FILE
from workers.load.raw_streams import PATTERN, StreamsReader, UnreadableStreams
from workers.load.spec import LoadResult, LoadSpec

_OUTCOME_FILE = "outcome.json"


class NothingToRecompute(ValueError):
    """The folder holds no load of ours, or not its streams. The message says why."""


class Change(Value):
    """One figure of a level that is not what it was; `stored` or `now` is None where it is undefined."""

    level: str
    figure: str
    stored: Any
    now: Any


class Recomputed(Value):
    """`requests` of the levels were computed anew, `stored_only` have no raw stream and keep their stored figures.

    `changed_samples`: in how many requests each of their fields changed. `changes`: what that does to the levels.
    `notes`: what limits the comparison.
    """

    folder: str
    requests: int
    stored_only: int
    changed_samples: dict[str, int]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    measurement: Measurement


def recompute(folder: Path) -> Recomputed:
    """Raises NothingToRecompute, UnreadableStreams, and OSError."""
    outcome = _outcome(folder)
    if outcome is not None and outcome.provenance is not None and outcome.provenance.virtual_time:
        raise NothingToRecompute(f"{folder}: this trial ran on virtual time, nothing was sent and nothing recorded")
    try:
        spec = LoadSpec.model_validate_json((folder / SPEC_FILE).read_bytes())
        result = LoadResult.model_validate_json((folder / RESULT_FILE).read_bytes())
    except FileNotFoundError as error:
        raise NothingToRecompute(f"{folder} holds no finished load: {error.filename} is missing") from error
    except ValidationError as error:
        raise NothingToRecompute(f"{folder}: its load can't be read: {error}") from error
    stored = result.levels
    by_index = {level: {one.index: one for one in samples} for level, samples in stored.items()}
    now, notes = _again(folder, by_index)
    computed = sum(len(samples) for samples in now.values())
    if not computed:
        raise NothingToRecompute(
            f"{folder} holds no raw streams of its levels: keep_streams was false, they were deleted, or it was "
            "measured before they were kept"
        )
    changed = Counter(
        name
        for level, samples in now.items()
        for index, one in samples.items()
        for name in _differing(_fields(by_index[level][index]), _fields(one))
    )
    samples = {
        level: tuple(now.get(level, {}).get(one.index, one) for one in theirs) for level, theirs in stored.items()
    }
    measurement = measured(spec.workload, samples, {}, stopped=result.stopped)
    before = outcome.measurement if outcome is not None else None
    if before is None:
        notes.append("the attempt left no measurement: compared is what its stored samples give today")
        before = measured(spec.workload, stored, {}, stopped=result.stopped)
    total = sum(len(theirs) for theirs in stored.values())
    return Recomputed(
        folder=str(folder),
        requests=computed,
        stored_only=total - computed,
        changed_samples=dict(sorted(changed.items())),
        changes=tuple(_changes(spec.workload, before, measurement)),
        notes=tuple(notes),
        measurement=measurement,
    )


def _again(
    folder: Path, stored: Mapping[str, Mapping[int, RequestSample]]
) -> tuple[dict[str, dict[int, RequestSample]], list[str]]:
    """Samples by level and index, as far as streams were kept."""
    found: dict[str, dict[int, RequestSample]] = {}
    notes: list[str] = []
    for path in sorted(folder.glob(PATTERN)):
        reader = StreamsReader(path)
        for kept in reader.requests():
            if kept.index in stored.get(kept.level, {}):
                found.setdefault(kept.level, {})[kept.index] = kept.sample()
        if reader.left_out:
            notes.append(f"{path.name}: {reader.left_out} requests were left out when the file was full")
        if not reader.whole:
            notes.append(f"{path.name} has no end: its process was killed")
    return found, notes


def _outcome(folder: Path) -> TrialOutcome | None:
    try:
        return TrialOutcome.model_validate_json((folder / _OUTCOME_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise NothingToRecompute(f"{folder}: its outcome can't be read: {error}") from error


def _changes(workload: Workload, before: Measurement, after: Measurement) -> Iterator[Change]:
    for level in (level.name for level in workload.levels):
        if level not in before.levels or level not in after.levels:
            continue
        stored, now = _fields(before.levels[level]), _fields(after.levels[level])
        for name in _differing(stored, now):
            yield Change(level=level, figure=name, stored=stored.get(name), now=now.get(name))


def _fields(value: Value) -> dict[str, Any]:
    """Its figures by dotted name."""
    return dict(_flat("", value.model_dump(mode="json")))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else name, inner)
    else:
        yield prefix, value


def _differing(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in {**stored, **now} if not _same(stored.get(name), now.get(name))]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _words(found: Recomputed) -> str:
    lines = [f"{found.folder}: {found.requests} requests computed again, {found.stored_only} without a raw stream"]
    lines += [f"note: {note}" for note in found.notes]
    if found.changed_samples:
        lines.append("changed in requests: " + ", ".join(f"{k} ({n})" for k, n in found.changed_samples.items()))
    lines += [f"{c.level} {c.figure}: {_figure(c.stored)} -> {_figure(c.now)}" for c in found.changes]
    if not found.changes:
        lines.append("no figure of a level changed")
    return "\n".join(lines)


def _figure(value: Any) -> str:
    return "undefined" if value is None else f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="autotune recompute", description="Figures again from raw streams.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        found = recompute(given.folder)
    except (NothingToRecompute, UnreadableStreams, OSError) as error:
        sys.stderr.write(f"autotune: {error}\n")
        return 1
    sys.stdout.write((found.model_dump_json(indent=2) if given.json else _words(found)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
