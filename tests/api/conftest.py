from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.running_api import RunningApi, running


@pytest.fixture
def api(tmp_path: Path) -> Iterator[RunningApi]:
    with running(tmp_path) as found:
        yield found
