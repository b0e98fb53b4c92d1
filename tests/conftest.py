"""For all tests: asserts of the contract suites say what went wrong; our own settings stay out."""

from __future__ import annotations

import os

import pytest

pytest.register_assert_rewrite("tests.contracts", "tests.e2e.running_service")


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AUTOTUNE_"):
            monkeypatch.delenv(name)
