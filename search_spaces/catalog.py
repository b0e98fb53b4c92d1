"""The search spaces that are known here: those that come with the product, and the user's own.

A space is one YAML file; `my_space.yaml` describes the space `my-space`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.documents import nearest
from autotune.documents.space_file import name_in_file, read_space
from autotune.domain.space import SearchSpace
from autotune.errors import InvalidSpace, NotFound, Problem

BUILT_IN = Path(__file__).parent


class SpaceCatalog:
    """Spaces by name (port `SpaceSource`). A file that changes on disk is read again; thread-safe."""

    def __init__(self, user_dir: Path | None = None, built_in: Path = BUILT_IN) -> None:
        """`user_dir` need not exist; its files add to the built-in ones and can't replace them."""
        self._folders = (built_in,) if user_dir is None else (built_in, user_dir)
        self._read: dict[Path, tuple[tuple[int, int], SearchSpace]] = {}

    def names(self) -> Sequence[str]:
        """Every space that has a file, in order; whether the file is right shows when it is asked for."""
        return sorted(self._files())

    def space(self, name: str) -> SearchSpace:
        """Raises NotFound with the known names, InvalidSpace with every problem of its file."""
        files = self._files().get(name)
        if files is None:
            known = self.names()
            hint = nearest(name, known)
            text = f"there is no search space {name}; known: {', '.join(known) or 'none'}"
            raise NotFound(f"{text}; {hint}" if hint else text)
        if len(files) > 1:
            message = f"another file describes a space {name}: {files[0]}"
            problem = Problem("name", message, "rename the file and its `name`", file=str(files[1]))
            raise InvalidSpace(f"there are two search spaces {name}", [problem])
        return self._space_in(files[0])

    def _files(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for folder in self._folders:
            for path in sorted(folder.glob("*.yaml")):
                found.setdefault(name_in_file(path), []).append(path)
        return found

    def _space_in(self, path: Path) -> SearchSpace:
        try:
            status = path.stat()
        except FileNotFoundError as error:
            raise NotFound(f"the file of the search space is gone: {path}") from error
        version = (status.st_mtime_ns, status.st_size)
        known = self._read.get(path)
        if known and known[0] == version:
            return known[1]
        space = read_space(path)
        self._read[path] = (version, space)
        return space
