"""A level that was measured several times within one launch: the middle one stands for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.domain.level import LevelMeasurement


def pace(level: LevelMeasurement) -> float | None:
    """What repeats are put in order by: the mean time per token, else what the level gets through, inverted."""
    times = level.decode_tpot_ms or level.tpot_ms
    if times is not None:
        return times.mean
    return 1 / level.output_tok_s if level.output_tok_s > 0 else None


def middle(
    repeats: Sequence[LevelMeasurement], reading: Callable[[LevelMeasurement], float | None] = pace
) -> LevelMeasurement:
    """The repeat with the median figure, whole: its figures fit together. Of an even number, the worse of two.

    One odd repeat, a stall of the host, moves nothing. Repeats that have no figure come last. Needs at least one.
    """
    known = [(value, level) for level in repeats if (value := reading(level)) is not None]
    if not known:
        return repeats[0].model_copy(update={"repeats": len(repeats)})
    known.sort(key=lambda pair: pair[0])
    place = min(len(repeats) // 2, len(known) - 1)
    value, chosen = known[place]
    spread = (known[-1][0] - known[0][0]) / value * 100 if len(known) > 1 and value > 0 else None
    return chosen.model_copy(update={"repeats": len(repeats), "repeat_spread_pct": spread})
