"""A measurement for people: one column for each load level, then why it may not be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from autotune.domain.contradictions import frontend_ms
from autotune.domain.level import LevelMeasurement
from autotune.domain.measurement import Trust
from autotune.domain.quantiles import Quantiles
from autotune.domain.server_truth import ServerTruth
from workers.measure.knee import Knee
from workers.measure.measured import Measured

NOTHING = "-"
_FEW = "*"  # behind a p99 of too few values

Row = tuple[str, list[str]]
_TIMES = (
    ("TTFT", "ttft_ms"),
    ("TTFT from due", "ttft_sched_ms"),
    ("TTFT without reasoning", "ttfo_ms"),
    ("TPOT", "tpot_ms"),
    ("decode TPOT", "decode_tpot_ms"),
    ("ITL", "itl_ms"),
    ("E2E", "e2e_ms"),
)
_RATES = (
    ("output tokens/s", "output_tok_s"),
    ("  steady window", "steady_output_tok_s"),
    ("requests/s", "requests_per_s"),
    ("  offered", "rate_per_s"),
    ("in flight, mean", "in_flight_mean"),
    ("prompt tokens", "prompt_tokens_mean"),
    ("  not in cache", "uncached_tokens_mean"),
    ("output tokens", "output_tokens_mean"),
    ("tokens an event", "tokens_per_event_mean"),
)


def words_of(found: Measured) -> str:
    """The whole of it."""
    levels = list(found.measurement.levels.values())
    head = f"{found.url}  {found.model}  {found.api}  seed {found.seed}"
    rows: list[Row] = [("", [level.level for level in levels]), *_rows(found, levels)]
    lines = [head, "", *columns(rows), ""]
    if any(
        q is not None and q.p99_is_maximum
        for level in levels
        for q in (level.ttft_ms, level.tpot_ms, level.e2e_ms, level.itl_ms)
    ):
        lines += [f"{_FEW} p99 of fewer than 100 values: little else than the largest"]
    lines += [f"limit {margin}" for margin in _margins(found)]
    return "\n".join([*lines, *_trust(found)])


def columns(rows: Sequence[Row]) -> list[str]:
    """Names flush left, figures flush right."""
    name_width = max(len(name) for name, _ in rows)
    widths = [max(len(cells[i]) for _, cells in rows) for i in range(len(rows[0][1]))]
    return [
        "  ".join(
            [name.ljust(name_width), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))]
        ).rstrip()
        for name, cells in rows
    ]


def figure(value: float | None) -> str:
    """Four significant digits, `-` where there is no value."""
    if value is None:
        return NOTHING
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def knee_words(knee: Knee) -> str:
    """Every step that was taken, and where it ended."""
    rows: list[Row] = [("requests/s", ["TTFT p99 (ms)", "TPOT (ms)", "tokens/s", "in flight", ""])]
    for step in knee.steps:
        cells = map(figure, (step.ttft_p99_ms, step.tpot_ms, step.output_tok_s, step.in_flight_mean))
        rows.append((f"{step.rate_per_s:g}", [*cells, "holds" if step.holds else step.why]))
    width = max(len(cells[-1]) for _, cells in rows)
    rows = [(name, [*cells[:-1], cells[-1].ljust(width)]) for name, cells in rows]
    if knee.rate_per_s is None:
        end = "no rate held"
    elif knee.breaks_at_per_s is None:
        end = f"knee: above {knee.rate_per_s:g} requests/s, the most that one level offers"
    else:
        end = f"knee: {knee.rate_per_s:g} requests/s hold, {knee.breaks_at_per_s:g} do not"
    return "\n".join([*columns(rows), "", end])


def _rows(found: Measured, levels: Sequence[LevelMeasurement]) -> Iterator[Row]:
    yield "requests", [str(level.sent) for level in levels]
    yield "  failed", [str(level.failed) for level in levels]
    if found.repeats > 1:
        yield "repeats, apart by %", [f"{level.repeats}, {figure(level.repeat_spread_pct)}" for level in levels]
    for name, field in _TIMES:
        quantiles: list[Quantiles | None] = [getattr(level, field) for level in levels]
        if not any(quantiles) or (field == "ttfo_ms" and quantiles == [level.ttft_ms for level in levels]):
            continue
        yield f"{name} mean (ms)", [figure(q.mean if q else None) for q in quantiles]
        for part in ("p50", "p90", "p99"):
            cells = [figure(getattr(q, part) if q else None) for q in quantiles]
            few = [_FEW if q and part == "p99" and q.p99_is_maximum else "" for q in quantiles]
            yield f"  {part}", [cell + mark for cell, mark in zip(cells, few, strict=True)]
    for name, field in _RATES:
        values: list[float | None] = [getattr(level, field) for level in levels]
        if any(value is not None for value in values):
            yield name, [figure(value) for value in values]
    if found.slo:
        yield "goodput (requests/s)", [figure(level.goodput_per_s) for level in levels]
        yield "requests within limits", [_share(level.slo_attainment) for level in levels]
    yield from _server_rows(levels)


def _server_rows(levels: Sequence[LevelMeasurement]) -> Iterator[Row]:
    """What the servers' own counters say, role by role; nothing where none of them tells."""
    for role in dict.fromkeys(role for level in levels for role in level.server):
        truths = [level.server.get(role) for level in levels]
        engine = next(truth.engine for truth in truths if truth is not None)
        yield f"by the counters of {role} ({engine})", ["" for _ in levels]
        told: Sequence[tuple[str, Callable[[LevelMeasurement, ServerTruth], str]]] = (
            ("  requests", lambda _, t: figure(t.finished)),
            ("  generated tokens", lambda _, t: NOTHING if t.generation_tokens is None else str(t.generation_tokens)),
            ("  cached prompt tokens", lambda _, t: NOTHING if t.cached_tokens is None else str(t.cached_tokens)),
            ("  TTFT mean (ms)", lambda _, t: figure(t.ttft_mean_ms)),
            ("  ours beyond it (ms)", lambda level, t: figure(frontend_ms(level, t))),
            ("  TPOT mean (ms)", lambda _, t: figure(t.tpot_mean_ms)),
            ("  queue mean (ms)", lambda _, t: figure(t.queue_mean_ms)),
            ("  prefill mean (ms)", lambda _, t: figure(t.prefill_mean_ms)),
            ("  decode mean (ms)", lambda _, t: figure(t.decode_mean_ms)),
            ("  accepted length", lambda _, t: figure(t.accept_len)),
            ("  passes as a graph", lambda _, t: _share(t.graph_share)),
            ("  preempted", lambda _, t: figure(t.preemptions)),
        )
        for name, cell in told:
            cells = [NOTHING if t is None else cell(level, t) for level, t in zip(levels, truths, strict=True)]
            if any(one != NOTHING for one in cells):
                yield name, cells


def _margins(found: Measured) -> Iterator[str]:
    for margin in found.margins:
        state = "broken" if margin.excess > 0 else "holds"
        yield f"{margin.limit}: {state} at {margin.level} ({figure(margin.value)})"


def _trust(found: Measured) -> Iterator[str]:
    trust = found.measurement.trust
    meaning = {Trust.OK: "", Trust.WARN: ": read the reasons", Trust.INVALID: ": not to be compared with anything"}
    yield f"trust: {trust}{meaning[trust]}"
    yield from (f"  {reason}" for reason in found.measurement.trust_reasons)
    remarks = [f for f in found.measurement.findings if f.trust is Trust.OK]
    if remarks:
        yield "remarks, which cost no trust"
        yield from (f"  {f.level}: {f.text}" if f.level else f"  {f.text}" for f in remarks)


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"
