"""Body of `autotune recompute`. Streams are read where they are recorded: the program that tells is the workers'."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

from autotune.cli.answers import Overview, TrialDetail
from autotune.cli.client import Client
from autotune.cli.program import become
from autotune.errors import InvalidRequest, NotFound

_TRIAL = re.compile(r"(\d{1,18})/(\d{1,18})")


def become_recomputer(url: str, place: str, data: Path | None, *, as_json: bool) -> None:
    """Replace this process; the answer and its exit code are the other program's.

    `place` is an attempt's folder, or STUDY/TRIAL: then the server is asked which attempt that was, and its folder is
    looked for in the data directory of this machine.
    """
    folder = Path(place)
    if not folder.is_dir():
        named = _TRIAL.fullmatch(place)
        if named is None:
            raise InvalidRequest(f"{place} is neither a folder nor STUDY/TRIAL, such as 3/17")
        folder = _folder(url, int(named[1]), int(named[2]), data)
    become("workers.load.recompute", {"json": as_json}, operands=[folder])


def _folder(url: str, study_id: int, number: int, data: Path | None) -> Path:
    with Client(url) as client:
        study = client.read(Overview, f"/studies/{study_id}").study
        trial = client.read(TrialDetail, f"/studies/{study_id}/trials/{number}")
    uid = f"{study.uid}-{number}-{trial.attempt}"
    folder = (_data_root() if data is None else data.expanduser()) / "attempts" / quote(uid, safe="")
    if folder.is_dir():
        return folder
    where = f", {trial.provenance.host}" if trial.provenance is not None else ""
    raise NotFound(
        f"{folder} is not here: streams stay on the host that ran the trial{where}; name the data directory there "
        "with --data, or the folder"
    )


def _data_root() -> Path:
    """Where `autotune up` keeps its data unless told otherwise."""
    named = os.environ.get("AUTOTUNE_DATA")
    return Path(named or Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "autotune").expanduser()
