from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.storage.sql_store import SqlStudyStore, open_store
from tests.fakes import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/autotune.db"


@pytest.fixture
def sql_store(url: str, clock: ManualClock) -> Iterator[SqlStudyStore]:
    store = open_store(url, clock.now)
    yield store
    store.close()
