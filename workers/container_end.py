"""End the containers of an attempt, and make sure of it. Standard library only: the supervisor needs it.

A container is no descendant of whoever ran `docker run`: when the client dies, it goes on. What an attempt starts in
containers is therefore written down before, as `containers.json` in its folder, and the note is deleted only once the
engine says that none is left. Worker, supervisor and sweep all work from that note.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

ATTEMPT_LABEL = "autotune.attempt"  # for people: two data directories may have attempts of one name
FOLDER_LABEL = "autotune.folder"  # what is looked for
LIMIT_S = 15.0

_NOTE = "containers.json"
_ANSWER_S = 10.0
_PAUSE_S = 0.1


def note_containers(folder: Path, program: str, env: Mapping[str, str]) -> None:
    """Before anything is started in a container. `env` is the whole environment of the engine's client."""
    draft = folder / f".{_NOTE}"
    draft.write_text(json.dumps({"program": program, "env": dict(env)}), encoding="utf-8")
    draft.replace(folder / _NOTE)


def noted(attempts_root: Path) -> Iterable[str]:
    """Attempts that may have containers left."""
    return (note.parent.name for note in attempts_root.glob(f"*/{_NOTE}"))


def may_have_containers(folder: Path) -> bool:
    """Whether containers were started that nobody has made sure of yet."""
    return (folder / _NOTE).exists()


def end_containers(folder: Path, limit_s: float = LIMIT_S) -> str | None:
    """Remove every container of the attempt; says why one may be left, None as a rule.

    Asks the engine again after removing, and again until `limit_s` is over where it does not answer.
    """
    try:
        note = json.loads((folder / _NOTE).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    deadline = time.monotonic() + limit_s
    while True:
        left_s = max(1.0, min(_ANSWER_S, deadline - time.monotonic()))
        asked = [note["program"], "ps", "--all", "--quiet", "--filter", f"label={FOLDER_LABEL}={folder}"]
        found, problem = _answer(asked, note["env"], left_s)
        if found == []:
            (folder / _NOTE).unlink(missing_ok=True)
            return None
        if found:
            _, refused = _answer([note["program"], "rm", "--force", *found], note["env"], left_s)
            problem = refused or problem
        if time.monotonic() > deadline:
            which = f"container {', '.join(found)}" if found else "a container"
            return f"{which} of the attempt may still run: {problem or 'it does not end'}"
        time.sleep(_PAUSE_S)


def _answer(argv: list[str], env: Mapping[str, str], limit_s: float) -> tuple[list[str] | None, str | None]:
    """The words that the engine answers, or why there are none."""
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"{argv[0]} {argv[1]} does not answer within {limit_s:.0f} s"
    except OSError as error:
        return None, f"{argv[0]}: {error.strerror or error}"
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return None, words[-1] if words else f"{argv[0]} {argv[1]} ended with {done.returncode}"
    return done.stdout.decode("utf-8", "replace").split(), None
