"""For all tests: asserts of the contract suites say what went wrong; our own settings and surroundings stay out."""

from __future__ import annotations

import os
import signal

import pytest

pytest.register_assert_rewrite("tests.contracts", "tests.e2e.running_service")

# A shell starts background jobs with SIGINT ignored, and whatever we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AUTOTUNE_"):
            monkeypatch.delenv(name)
