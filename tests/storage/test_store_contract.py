"""Both stores keep the same contract: the real one, and the one that tests of the engine use."""

from __future__ import annotations

import pytest

from autotune.engine.ports import StudyStore
from autotune.storage.sql_store import SqlStudyStore
from tests.contracts.store_contract import StoreContract
from tests.fakes import InMemoryStudyStore, ManualClock


class TestInMemoryStudyStore(StoreContract):
    @pytest.fixture
    def store(self, clock: ManualClock) -> StudyStore:
        return InMemoryStudyStore(clock.now)


class TestSqlStudyStore(StoreContract):
    @pytest.fixture
    def store(self, sql_store: SqlStudyStore) -> StudyStore:
        return sql_store
