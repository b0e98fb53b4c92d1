"""Health, readiness, metrics, and what happens when the database does not answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from structlog.testing import capture_logs

from autotune.domain.study import Study, StudyState
from autotune.domain.trial import Trial
from autotune.engine.ports import ANY_TRIAL, Event, Page, TrialFilter
from autotune.errors import Unavailable
from tests.api.running_api import RunningApi, done, failed, measured, running, started
from tests.fakes import InMemoryStudyStore


class BrokenStore(InMemoryStudyStore):
    """A store whose database can go away, and whose code can have a fault."""

    broken = False
    faulty = False

    def _check(self) -> None:
        if self.broken:
            raise Unavailable("the database is gone")
        if self.faulty:
            raise RuntimeError("secret detail of a fault")

    def study(self, study_id: int) -> Study:
        self._check()
        return super().study(study_id)

    def studies(self, state: StudyState | None = None, offset: int = 0, limit: int = 100) -> Page[Study]:
        self._check()
        return super().studies(state, offset, limit)

    def trials(
        self, study_id: int, where: TrialFilter = ANY_TRIAL, offset: int = 0, limit: int | None = None
    ) -> Page[Trial]:
        self._check()
        return super().trials(study_id, where, offset, limit)

    def events(self, after: int, limit: int = 500) -> Sequence[Event]:
        self._check()
        return super().events(after, limit)

    def last_event(self) -> int:
        self._check()
        return super().last_event()

    def lease_owner(self, name: str) -> str | None:
        self._check()
        return super().lease_owner(name)


def test_ready_while_a_dispatcher_holds_the_lease(api: RunningApi) -> None:
    answer = api.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["parts"]["database"]["ok"] is True
    assert "no dispatcher" in answer.json()["parts"]["dispatcher"]["reason"]
    api.store.hold_lease("dispatcher", "host-a/1", 60)
    answer = api.get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (200, True)
    assert api.store.lease_owner("dispatcher") == "host-a/1"


def test_a_database_that_is_gone_makes_503_everywhere_but_health(tmp_path: Path) -> None:
    store = BrokenStore()
    with running(tmp_path, store) as api:
        api.create()
        store.broken = True
        assert api.get("/healthz").status_code == 200
        ready = api.get("/readyz")
        assert (ready.status_code, ready.json()["parts"]["database"]["reason"]) == (503, "the database is gone")
        for path in (
            "/api/v1/studies",
            "/api/v1/studies/1",
            "/api/v1/studies/1/trials",
            "/api/v1/events",
            "/metrics",
            "/",
        ):
            answer = api.get(path)
            assert answer.status_code == 503, path
            assert answer.json() == {"error": "Unavailable", "detail": "the database is gone", "problems": []}
            assert answer.headers["Retry-After"] == "1"
        store.broken = False
        assert api.get("/api/v1/studies/1").status_code == 200


def test_an_event_stream_ends_when_the_database_goes(tmp_path: Path) -> None:
    store = BrokenStore()
    with running(tmp_path, store) as api, api.client.stream("GET", "/api/v1/events") as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("retry:")
        store.broken = True
        assert not [line for line in lines if line.startswith("data:")]


def test_a_fault_of_ours_is_told_without_details(tmp_path: Path) -> None:
    store = BrokenStore()
    with capture_logs() as logged, running(tmp_path, store) as api:
        store.faulty = True
        answer = api.get("/api/v1/studies")
        assert answer.status_code == 500
        assert answer.json()["error"] == "InternalError"
        assert "secret" not in answer.text
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert [(line["event"], line["path"]) for line in logged] == [("request failed", "/api/v1/studies")]


def test_metrics_count_what_is_stored(api: RunningApi) -> None:
    done(api)
    study = api.create(name="second")
    failed(api.store, study, started(api.store, study))
    measured(api.store, study, started(api.store, study), ttft_ms=900.0)
    started(api.store, study)
    for _ in range(2):  # a finished study is remembered from the first scrape
        text = api.get("/metrics").text
        for line in (
            'autotune_studies{state="running"} 1.0',
            'autotune_studies{state="done"} 1.0',
            'autotune_trials{outcome="meets_sla",state="measured"} 7.0',
            'autotune_trials{outcome="breaks_sla",state="measured"} 1.0',
            'autotune_trials{outcome="out_of_memory",state="failed"} 2.0',
            'autotune_trials{outcome="",state="running"} 1.0',
        ):
            assert line in text.splitlines()


def test_metrics_count_requests_by_route(tmp_path: Path) -> None:
    with running(tmp_path) as api:
        api.create()
        for number in (1, 1, 2):
            api.get(f"/api/v1/studies/{number}")
        api.get("/nowhere")
        api.client.request("MKCOL", "/healthz")
        lines = api.get("/metrics").text.splitlines()
    for route, status, count in (("/api/v1/studies/{study_id}", 200, 2), ("/api/v1/studies/{study_id}", 404, 1)):
        assert f'autotune_http_requests_total{{method="GET",route="{route}",status="{status}"}} {count}.0' in lines
    assert 'autotune_http_requests_total{method="GET",route="other",status="404"} 1.0' in lines
    assert 'autotune_http_requests_total{method="other",route="/healthz",status="405"} 1.0' in lines


def test_a_resumed_study_is_counted_anew(api: RunningApi) -> None:
    study = api.create()
    measured(api.store, study, started(api.store, study))
    api.store.finish_study(study.id, StudyState.CANCELLED, "cancelled")
    assert 'autotune_studies{state="cancelled"} 1.0' in api.get("/metrics").text
    api.store.resume_study(study.id)
    measured(api.store, study, started(api.store, study))
    assert 'autotune_trials{outcome="meets_sla",state="measured"} 2.0' in api.get("/metrics").text
