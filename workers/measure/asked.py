"""From words of a command line to a workload and its limits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from pydantic import ValidationError

from autotune.domain.objective import Limit
from autotune.domain.presets import PRESETS
from autotune.domain.workload import CachePolicy, Workload
from autotune.errors import InvalidRequest, Problem

KNEE = "knee"


@dataclass(frozen=True, slots=True)
class AskedLoad:
    """A workload, and whether its rate is to be raised until the server is at its end."""

    workload: Workload
    knee: bool = False


def asked_load(
    preset: str | None, file: Path | None, *, keep_cache: bool = False, keep_streams: bool = True
) -> AskedLoad:
    """The workload of a preset or of a file (YAML or JSON; `preset: NAME` in it takes a preset as its basis).

    Raises InvalidRequest with everything that is wrong with it.
    """
    if (preset is None) == (file is None):
        raise InvalidRequest("name either a preset or the file of a workload: --preset P or --workload FILE")
    content = {"preset": preset} if file is None else _content(file)
    if preset is not None and preset not in PRESETS:
        raise InvalidRequest(f"there is no preset {preset}; there are {', '.join(PRESETS)}")
    try:
        workload = Workload.model_validate(content)
    except ValidationError as error:
        raise InvalidRequest("the workload is invalid", _problems(error, file)) from error
    changes: dict[str, Any] = {} if keep_streams else {"keep_streams": False}
    if keep_cache:
        kept = (level.model_copy(update={"cache": CachePolicy.KEEP}) for level in workload.levels)
        changes["levels"] = tuple(kept)
    load = AskedLoad(workload.model_copy(update=changes), knee=content.get("preset") == KNEE)
    if load.knee:
        _check_knee(load.workload)
    return load


def limits(texts: Sequence[str], workload: Workload) -> tuple[Limit, ...]:
    """Limits such as `ttft_p99_ms <= 400 at c8`. Raises InvalidRequest."""
    names = [level.name for level in workload.levels]
    found: list[Limit] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            limit = Limit.parse(text)
        except ValueError as error:
            problems.append(Problem(key="--slo", message=str(error)))
            continue
        if limit.level not in (None, *names):
            problems.append(Problem(key="--slo", message=f"there is no level {limit.level}", allowed=tuple(names)))
        found.append(limit)
    if problems:
        raise InvalidRequest("a limit is invalid", problems)
    return tuple(found)


def root_of(url: str) -> str:
    """The server's root: clients are often told the address with `/v1` behind it. Raises InvalidRequest."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{url!r} is no URL: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidRequest(f"{url!r} is no URL of a server, such as http://127.0.0.1:8000")
    if parsed.userinfo:
        raise InvalidRequest("a URL with a password in it would be printed and stored; use --api-key-env NAME")
    if parsed.query or parsed.fragment:
        raise InvalidRequest(f"{url!r} has more than an address; leave out what stands behind the path")
    return str(parsed).rstrip("/").removesuffix("/v1").rstrip("/")


def place_for(out: Path | None, *, folder: bool) -> None:
    """Whether results can be written there, before minutes are spent on them. Raises InvalidRequest."""
    if out is None:
        return
    if not folder and out.is_dir():
        raise InvalidRequest(f"{out} is a folder; name a file")
    if folder and out.exists() and not out.is_dir():
        raise InvalidRequest(f"{out} is a file; name a folder")
    there = next((parent for parent in (out, *out.absolute().parents) if parent.exists()), Path("/"))
    if not os.access(there, os.W_OK):
        raise InvalidRequest(f"{out} can't be written")


def _content(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequest(f"{file} can't be read: {error}") from error
    if isinstance(content, Mapping) and isinstance(content.get("workload"), Mapping):
        content = content["workload"]  # that of a study file
    if not isinstance(content, Mapping):
        raise InvalidRequest(f"{file} holds no workload: prompt_tokens, output_tokens, levels, or a preset")
    return dict(content)


def _problems(error: ValidationError, file: Path | None) -> list[Problem]:
    return [
        Problem(
            key=".".join(map(str, one["loc"])) or "workload",
            message=one["msg"].removeprefix("Value error, "),
            file=None if file is None else str(file),
        )
        for one in error.errors()
    ]


def _check_knee(workload: Workload) -> None:
    (first, *others) = workload.levels
    if others or first.rate_per_s is None or first.rate_to_per_s is not None:
        raise InvalidRequest("a knee is looked for at one level with a rate_per_s, from which the search begins")
