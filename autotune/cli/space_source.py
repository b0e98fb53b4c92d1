"""A space by name, from the server, or by path, from a file of this machine."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from autotune.cli.client import Client
from autotune.documents.space_file import read_space
from autotune.domain.space import SearchSpace


def space_from(url: str, name_or_path: str) -> SearchSpace:
    """Whatever can't be a name is a path. Raises InvalidSpace for a wrong file, NotFound for a strange name."""
    if not is_name(name_or_path):
        return read_space(Path(name_or_path))
    with Client(url) as client:
        return client.read(SearchSpace, f"/spaces/{quote(name_or_path, safe='')}")


def is_name(text: str) -> bool:
    """Whether this can be the name of a space: no dot, no slash."""
    return re.fullmatch(r"[A-Za-z0-9_-]+", text) is not None
