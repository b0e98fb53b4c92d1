"""Where the service keeps its data on this machine."""

from __future__ import annotations

import os
from pathlib import Path


class DataDirectory:
    """Paths below one root; nothing is written outside of it but Ray's sockets."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().resolve()
        self.templates = self.root / "templates"
        self.spaces = self.root / "spaces"
        self.attempts = self.root / "attempts"
        self.run = self.root / "run"
        self.logs = self.root / "logs"

    def prepare(self) -> DataDirectory:
        """Make the folders, readable by their owner alone."""
        for path in (self.root, self.templates, self.spaces, self.attempts, self.run, self.logs):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.root / 'autotune.db'}"


def default_root() -> Path:
    """`$AUTOTUNE_DATA`, else `autotune` in the user's data folder (XDG)."""
    named = os.environ.get("AUTOTUNE_DATA")
    if named:
        return Path(named)
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "autotune"
