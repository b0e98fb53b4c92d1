"""A whole space as lines of text."""

from __future__ import annotations

from autotune.cli.space_words import knob_place, over_baseline, value_in_words
from autotune.cli.tables import shortened, table
from autotune.domain.space import SearchSpace


def in_words(space: SearchSpace) -> list[str]:
    """Knobs, rules and recipes, each a table."""
    rows = [
        [
            knob.name,
            str(knob.tier),
            shortened(knob.describe(), 48),
            value_in_words(space.baseline.get(knob.name)),
            knob_place(knob),
            ("may change numbers: " if knob.risk else "") + knob.about,
        ]
        for knob in space.knobs
    ]
    chip = f" on {space.chip}" if space.chip else ""
    lines = [f"{space.name}: {space.engine}{chip}", space.about, ""]
    lines += table(["knob", "tier", "values", "baseline", "lands in", "about"], rows).splitlines()
    for title, entries in (
        ("rules", [[f"  {r.name}", str(r.severity), r.why] for r in space.rules]),
        ("recipes", [[f"  {r.name}", over_baseline(space, r.values), r.about] for r in space.recipes]),
    ):
        lines += ["", f"{title}:", *table(["", "", ""], entries).splitlines()[1:]] if entries else []
    return lines
