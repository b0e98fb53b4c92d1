"""Body of `autotune classify`. What engines write is known to the workers, so theirs is the program that tells."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def become_classifier(
    files: Sequence[Path],
    engine: str,
    phase: str,
    exit_code: int | None,
    asked: Path | None,
    oom_kills: int | None,
    silent_for: float | None,
) -> None:
    """Replace this process; the answer and its exit code are the classifier's."""
    argv = [sys.executable, "-m", "workers.failures", f"--engine={engine}", f"--phase={phase}"]
    options = {"exit-code": exit_code, "asked": asked, "oom-kills": oom_kills, "silent-for": silent_for}
    argv += [f"--{name}={value}" for name, value in options.items() if value is not None]
    os.execv(sys.executable, [*argv, "--", *map(str, files)])  # noqa: S606  # no shell is what is wanted
