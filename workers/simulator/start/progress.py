"""Progress bars as the engines' logs show them."""

from __future__ import annotations

_WIDTH = 10


def bar(what: str, done: int, total: int, seconds: float, unit: str = "it") -> str:
    """One state of a bar after so many seconds; states follow one another on the same line."""
    filled = _WIDTH * done // total
    left = seconds / done * (total - done) if done else 0.0
    blocks = "█" * filled + " " * (_WIDTH - filled)
    pace = f"{seconds / done:.2f}s/{unit}" if done else f"?{unit}/s"
    return f"{what}: {100 * done // total:3d}%|{blocks}| {done}/{total} [{_clock(seconds)}<{_clock(left)}, {pace}]"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
