"""Which version of its engine a ready server says that it is."""

from __future__ import annotations

import json
from collections.abc import Mapping

import httpx

from workers.attempt_files import AttemptFiles
from workers.start_log import engine_words, spoken_version

LONGEST = 80  # characters of a version that is kept
_ANSWER_S = 5.0
_LONGEST_ANSWER = 1024 * 1024


def engine_versions(engine: str, files: AttemptFiles, urls: Mapping[str, str]) -> dict[str, str]:
    """By role, for the roles that tell."""
    said = {role: engine_version(engine, files.log_text(role), url) for role, url in urls.items()}
    return {role: version for role, version in said.items() if version is not None}


def engine_version(engine: str, log_text: str, base_url: str | None) -> str | None:
    """By its log, else by its own answer at `base_url`; None where it tells neither way."""
    found = spoken_version(engine, log_text)
    if found is None and base_url is not None:
        found = _asked(engine, base_url)
    return None if found is None else found[:LONGEST]


def _asked(engine: str, base_url: str) -> str | None:
    words = engine_words(engine)
    if words.version_path is None:
        return None
    body = b""
    try:
        with (
            httpx.Client(trust_env=False, follow_redirects=False, timeout=_ANSWER_S) as client,
            client.stream("GET", base_url + words.version_path) as response,
        ):
            if response.status_code != httpx.codes.OK:
                return None
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _LONGEST_ANSWER:
                    return None
        content = json.loads(body)
    except (httpx.HTTPError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    return next((str(content[key]) for key in words.version_keys if content.get(key)), None)
