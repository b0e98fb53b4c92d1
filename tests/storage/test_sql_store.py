"""What only the store on SQL can show: it survives, and its lists stay cheap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text

from autotune.domain.failure import FailureClass
from autotune.domain.study import StudyState
from autotune.domain.trial import StudyPhase, TrialState
from autotune.engine.ports import TrialFilter
from autotune.storage.sql_store import SqlStudyStore, open_store
from tests.builders import failure, new_trial, outcome, space, study_spec, verdict
from tests.fakes import ManualClock


@contextmanager
def statements(store: SqlStudyStore) -> Iterator[list[tuple[str, Any]]]:
    """What is sent to the database meanwhile."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        sent.append((statement, parameters))

    event.listen(store._database.engine, "before_cursor_execute", note)
    yield sent
    event.remove(store._database.engine, "before_cursor_execute", note)


def test_everything_is_there_after_a_restart(url: str, clock: ManualClock) -> None:
    store = open_store(url, clock.now)
    made = store.create_study(study_spec(), space(), "key")
    store.add_trial(made.id, new_trial(StudyPhase.GATE, label="baseline"))
    store.start_attempt(made.id, 0, "u-1")
    done = store.finish_trial(made.id, 0, 1, outcome("u-1"), verdict())
    events = list(store.events(0))
    assert store.hold_lease("dispatcher", "a", 10)
    store.close()

    store = open_store(url, clock.now)
    assert store.studies().items == (made,)
    assert store.space_of(made.id) == space()
    assert store.trials(made.id).items == (done,)
    assert list(store.events(0)) == events
    assert not store.hold_lease("dispatcher", "b", 10)
    assert store.create_study(study_spec(), space(), "key") == made
    store.close()


def test_two_stores_on_one_database_see_each_other(url: str, clock: ManualClock) -> None:
    """As the API and the dispatcher do."""
    api, dispatcher = open_store(url, clock.now), open_store(url, clock.now)
    made = api.create_study(study_spec(), space())
    trial = dispatcher.add_trial(made.id, new_trial())
    assert api.trials(made.id).items == (trial,)
    api.finish_study(made.id, StudyState.CANCELLED, "enough")
    assert dispatcher.trial(made.id, 0).state is TrialState.CANCELLED
    assert [e.seq for e in dispatcher.events(0)] == [1, 2, 3, 4]
    api.close()
    dispatcher.close()


def test_lost_attempts_are_kept(sql_store: SqlStudyStore) -> None:
    made = sql_store.create_study(study_spec(), space())
    sql_store.add_trial(made.id, new_trial())
    sql_store.start_attempt(made.id, 0, "u-1")
    sql_store.lose_attempt(made.id, 0, 1, failure(FailureClass.INFRASTRUCTURE))
    sql_store.start_attempt(made.id, 0, "u-2")
    sql_store.cancel_trial(made.id, 0)
    with sql_store._database.reading() as session:
        found = session.connection().execute(
            text("SELECT attempt, uid, ended, failure IS NULL FROM attempt ORDER BY id")
        )
        assert [tuple(row) for row in found] == [(1, "u-1", "lost", 0), (2, "u-2", "cancelled", 1)]


@pytest.mark.parametrize("size", [5, 40])
def test_a_list_takes_the_same_few_statements_however_long_it_is(sql_store: SqlStudyStore, size: int) -> None:
    made = sql_store.create_study(study_spec(), space())
    for _ in range(size):
        sql_store.add_trial(made.id, new_trial())
        sql_store.create_study(study_spec(), space())
    with statements(sql_store) as sent:
        assert len(sql_store.trials(made.id).items) == size
    assert len([s for s, _ in sent if s.startswith("SELECT")]) == 3
    with statements(sql_store) as sent:
        assert len(sql_store.studies().items) == size + 1
    assert len([s for s, _ in sent if s.startswith("SELECT")]) == 2
    with statements(sql_store) as sent:
        sql_store.events(0)
    assert len([s for s, _ in sent if s.startswith("SELECT")]) == 1


def test_filters_read_no_row_that_does_not_match(sql_store: SqlStudyStore) -> None:
    made = sql_store.create_study(study_spec(), space())
    where = TrialFilter(
        state=TrialState.FAILED, phase=StudyPhase.SEARCH, failure_class=FailureClass.HANG, feasible=False
    )
    with statements(sql_store) as sent:
        sql_store.trials(made.id, where, offset=10, limit=10)
    queries = [(s, p) for s, p in sent if "FROM trial" in s]
    assert len(queries) == 2
    with sql_store._database.reading() as session:
        for statement, parameters in queries:
            plan = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            steps = " / ".join(row[3] for row in plan)
            assert "COVERING INDEX ix_trial_filter" in steps
            assert "SCAN trial" not in steps
