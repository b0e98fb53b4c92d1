from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.running_api import EmptyableStore, RunningApi, running


@pytest.fixture(scope="session")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningApi, EmptyableStore]]:
    """One server for all tests: starting and stopping one for each would take a minute."""
    store = EmptyableStore()
    with running(tmp_path_factory.mktemp("api"), store) as found:
        yield found, store


@pytest.fixture
def api(shared_api: tuple[RunningApi, EmptyableStore]) -> RunningApi:
    """A running api that holds nothing yet."""
    found, store = shared_api
    store.empty()
    return found
