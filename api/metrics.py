"""What Prometheus may scrape: the stored studies and trials as gauges, and the requests to this process."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.domain.failure import FailureClass
from autotune.domain.study import Study, StudyState
from autotune.domain.trial import TrialState
from autotune.engine.ports import StudyStore, TrialFilter

_PAGE = 500

Kind = tuple[str, str]
"""A trial's state and its outcome: `meets_sla` or `breaks_sla`, a failure class, or empty."""


class Metrics:
    """One registry for one app, so that two apps in one process do not count together."""

    def __init__(self, store: StudyStore) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.registry.register(StoredState(store))
        self.requests = prometheus.Counter(
            "autotune_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )


class StoredState(Collector):
    """Counts studies and trials at each scrape. A finished study is counted once and remembered."""

    def __init__(self, store: StudyStore) -> None:
        self._store = store
        self._finished: dict[int, tuple[Study, Counter[Kind]]] = {}
        self._lock = threading.Lock()

    def describe(self) -> Iterator[Metric]:
        """Registering must not read the store."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        studies = self._studies()
        by_state = Counter(study.state for study in studies)
        trials: Counter[Kind] = Counter()
        for study in studies:
            trials += self._trials(study)
        gauge = GaugeMetricFamily("autotune_studies", "Stored studies.", labels=["state"])
        for state in StudyState:
            gauge.add_metric([state], by_state[state])
        yield gauge
        gauge = GaugeMetricFamily("autotune_trials", "Stored trials.", labels=["state", "outcome"])
        for (trial_state, outcome), count in sorted(trials.items()):
            gauge.add_metric([trial_state, outcome], count)
        yield gauge

    def _studies(self) -> list[Study]:
        found: list[Study] = []
        while True:
            page = self._store.studies(None, len(found), _PAGE)
            found += page.items
            if not page.items or len(found) >= page.total:
                return found

    def _trials(self, study: Study) -> Counter[Kind]:
        with self._lock:
            remembered = self._finished.get(study.id)
        if remembered is not None and remembered[0] == study:
            return remembered[1]
        counts = self._count(study.id)
        # Trials in flight are ended a moment after their study: only then the count is final.
        if study.state.is_finished and not any(state in _OPEN for state, _ in counts):
            with self._lock:
                self._finished[study.id] = (study, counts)
        return counts

    def _count(self, study_id: int) -> Counter[Kind]:
        found: Counter[Kind] = Counter()

        def add(state: TrialState, outcome: str, where: TrialFilter) -> None:
            total = self._store.trials(study_id, where, limit=1).total
            if total:
                found[state, outcome] = total

        for state in (TrialState.WAITING, TrialState.RUNNING, TrialState.CANCELLED):
            add(state, "", TrialFilter(state=state))
        for feasible, outcome in ((True, "meets_sla"), (False, "breaks_sla")):
            add(TrialState.MEASURED, outcome, TrialFilter(state=TrialState.MEASURED, feasible=feasible))
        for failure_class in FailureClass:
            where = TrialFilter(state=TrialState.FAILED, failure_class=failure_class)
            add(TrialState.FAILED, failure_class, where)
        return found


_OPEN = frozenset({TrialState.WAITING, TrialState.RUNNING})


class RequestCount:
    """Counts every answer under its route's pattern: a label per address would never end."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._metrics.requests.labels(method, route, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
