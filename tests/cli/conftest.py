"""Runs the command line in this process against a server that plays the service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from autotune.cli.main import main
from tests.cli.fake_api import FakeApi, running


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class CommandLine:
    """`autotune WORDS...` against the server at `url`."""

    def __init__(self, url: str, capture: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self._capture = capture

    def __call__(self, *words: str, url: str | None = None) -> Done:
        self._capture.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AUTOTUNE_URL", url or self._url)
            patch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # proxies must not matter
            patch.setenv("COLUMNS", "200")
            with pytest.raises(SystemExit) as ended:
                main(words)
        out, err = self._capture.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, out, err)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running(FakeApi()) as api:
        yield api


@pytest.fixture
def autotune(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(api.url, capsys)
