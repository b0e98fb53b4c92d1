"""Plain text for people: tables, numbers, settings."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from autotune.domain.export import setting_in_words

NOTHING = "-"


def print_json(content: Any) -> None:
    """The only thing on stdout of a command that was asked for JSON."""
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Aligned columns; those of `right` (by index) end flush. The last column is never padded."""
    lines = [list(head), *map(list, rows)]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(head))]
    printed = []
    for line in lines:
        cells = []
        for i, cell in enumerate(line):
            gap = " " * (widths[i] - _width(cell))
            cells.append(gap + cell if i in right else cell + gap)
        printed.append("  ".join(cells).rstrip())
    return "\n".join(printed)


def figure(value: float | None, unit: str = "") -> str:
    """Four significant digits, `-` where there is no value."""
    if value is None:
        return NOTHING
    text = f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}" if unit else text


def gain(value: float | None) -> str:
    """`+24.6 %`: positive is better than the baseline."""
    return NOTHING if value is None else f"{value:+.1f} %"


def changes_in_words(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """`buffer_mb=512, expansion_mode=AIV`: what differs from the baseline."""
    parts = []
    for knob, (_, value) in sorted(changes.items()):
        parts.append(f"{knob}={value if isinstance(value, str) else setting_in_words(value)}")
    return ", ".join(parts)


def shortened(text: str, width: int = 100) -> str:
    """One line of at most `width` characters, without control characters of a server's log."""
    line = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in text)
    return line if len(line) <= width else line[: width - 3] + "..."


def harmless(text: str) -> str:
    """A server's own text without what could steer the terminal; line breaks and tabs stay."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "?" for c in text)


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
