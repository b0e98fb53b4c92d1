"""The same load by ours, by another client, and by ours again; what is left when definitions are taken out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autotune.domain.level import LevelMeasurement
from autotune.domain.objective import metric
from autotune.domain.request_sample import RequestSample
from autotune.domain.value import Value
from autotune.domain.workload import CachePolicy, LoadLevel
from autotune.errors import InvalidRequest
from workers.load.prompts import PromptSource
from workers.load.spec import LoadSpec
from workers.measure.measured import Taken
from workers.measure.table import NOTHING, Row, columns, figure
from workers.parity.definitions import DEFINITIONS, OURS, READ_IN, Client, ours_by

FIGURES = tuple(OURS)


class Compared(Value):
    """One figure of one level. `ours_again` is that of a second run of ours, after the other client's.

    `by_their_definition`: our own requests by the other definition, as far as they can tell. `remaining_pct`: how far
    theirs is from that; what is less than our two runs are apart is noise.
    """

    ours: float | None
    ours_again: float | None
    theirs: float
    difference_pct: float | None
    by_their_definition: float | None
    remaining_pct: float | None
    our_definition: str
    their_definition: str | None = None
    effect: str | None = None


class ComparedLevel(Value):
    """`failed`: requests of the other client that did not end well."""

    figures: dict[str, Compared]
    requests: int
    failed: int
    trust: str
    trust_reasons: tuple[str, ...] = ()


class Parity(Value):
    """All levels. `definitions_read_in`: the version of the client that its definitions are those of."""

    url: str
    model: str
    api: str
    client: Client
    version: str | None
    definitions_read_in: str
    seed: int
    levels: dict[str, ComparedLevel]


def texts(spec: LoadSpec, stream: str, level: LoadLevel, count: int) -> list[str]:
    """Prompts of `prompt_tokens` words, all different; another `stream` gives others."""
    source = PromptSource(spec)
    return [" ".join(map(str, source.prompt(f"{stream}/{level.name}", index))) for index in range(count)]


def our_spec(spec: LoadSpec, stream: str, level: LoadLevel, folder: Path) -> LoadSpec:
    """The level for our own load process: the kind of text that the other client gets. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    workload = spec.workload
    lines: list[str] = []
    for text in texts(spec, stream, level, level.requests + workload.warmup_requests):
        content = {"messages": [{"role": "user", "content": text}]} if spec.api == "chat" else {"prompt": text}
        more = {"max_tokens": workload.output_tokens, "temperature": 0, "ignore_eos": True}
        lines.append(json.dumps({**content, **more}) + "\n")
    file = folder.absolute() / "requests.jsonl"
    file.write_text("".join(lines), encoding="utf-8")
    kept = level.model_copy(update={"cache": CachePolicy.KEEP})
    changes = {"levels": (kept,), "requests_file": str(file), "exact_text": False}
    return spec.model_copy(update={"workload": workload.model_copy(update=changes)})


def check_workload(spec: LoadSpec) -> None:
    """Raises InvalidRequest for what other clients can't send."""
    workload = spec.workload
    if workload.shared_prefix_tokens or workload.requests_file is not None:
        raise InvalidRequest("parity compares random prompts: leave out shared_prefix_tokens and requests_file")


def compared(client: Client, first: Taken, again: Taken, theirs: Mapping[str, float]) -> ComparedLevel:
    """One level of both."""
    ((name, ours),) = first.measured.measurement.levels.items()
    (second,) = again.measured.measurement.levels.values()
    good = [sample for sample in first.samples[name] if sample.error is None]
    figures = {
        key: _compared(client, key, _of(ours, key), _of(second, key), theirs[key], good)
        for key in FIGURES
        if key in theirs
    }
    trusts = {str(one.measured.measurement.trust): one.measured.measurement for one in (first, again)}
    worst = next(trust for trust in ("invalid", "warn", "ok") if trust in trusts)
    return ComparedLevel(
        figures=figures,
        requests=round(theirs.get("requests", 0)),
        failed=round(theirs.get("failed", 0)),
        trust=worst,
        trust_reasons=trusts[worst].trust_reasons,
    )


def _compared(
    client: Client,
    key: str,
    ours: float | None,
    again: float | None,
    theirs: float,
    good: Sequence[RequestSample],
) -> Compared:
    by_theirs = ours_by(client, key, good, ours)
    definition = DEFINITIONS[client].get(key)
    return Compared(
        ours=ours,
        ours_again=again,
        theirs=theirs,
        difference_pct=_apart_pct(ours, theirs),
        by_their_definition=by_theirs,
        remaining_pct=_apart_pct(by_theirs, theirs),
        our_definition=OURS[key],
        their_definition=None if definition is None else definition.theirs,
        effect=None if definition is None else definition.effect,
    )


def _of(level: LevelMeasurement, key: str) -> float | None:
    if key == "prompt_tokens":
        return level.prompt_tokens_mean
    if key == "output_tokens":
        return level.output_tokens_mean
    return None if key == "whole_latency_per_token_ms" else metric(level, key)


def _apart_pct(ours: float | None, theirs: float) -> float | None:
    return None if not ours else 100 * (theirs / ours - 1)


# --- words ------------------------------------------------------------------------------------


def words_of(parity: Parity) -> str:
    """Figures first, then each definition once."""
    client = parity.client
    head = f"{parity.url}  {parity.model}  {parity.api}  {client} {parity.version or 'of an unknown version'}"
    lines = [head, *(line for name, level in parity.levels.items() for line in _level(name, level, client))]
    lines += ["", f"definitions, as read in {client} {READ_IN[client]}"]
    lines += list(_definitions(parity))
    return "\n".join(lines)


def _level(name: str, level: ComparedLevel, client: Client) -> Iterator[str]:
    yield ""
    rows: list[Row] = [(name, ["ours", "again", str(client), "apart %", "ours by theirs", "left %"])]
    for key, one in level.figures.items():
        again = f"{100 * (one.ours_again / one.ours - 1):+.2f} %" if one.ours and one.ours_again else NOTHING
        cells = [figure(one.ours), again, figure(one.theirs), _signed(one.difference_pct)]
        rows.append((key, [*cells, figure(one.by_their_definition), _signed(one.remaining_pct)]))
    yield from columns(rows)
    if level.failed:
        yield f"{level.failed} of {level.requests} requests of {client} failed"
    yield f"trust in ours: {level.trust}"
    yield from (f"  {reason}" for reason in level.trust_reasons)


def _definitions(parity: Parity) -> Iterator[str]:
    seen: set[str] = set()
    for level in parity.levels.values():
        for key, one in level.figures.items():
            if key in seen or one.their_definition is None:
                continue
            seen.add(key)
            yield f"  {key}"
            yield f"    ours    {one.our_definition}"
            yield f"    theirs  {one.their_definition}"
            yield f"    effect  {one.effect}"


def _signed(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.2f}"
