"""A real api on a free port of this machine, and studies to show in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from api.app import Api, bind, create_app, url_of
from api.settings import Settings
from autotune.domain.job import TrialOutcome
from autotune.domain.knobs import KnobValue
from autotune.domain.objective import judge
from autotune.domain.space import SearchSpace
from autotune.domain.study import Study, StudyState
from autotune.domain.template import LaunchTemplate, RoleTemplate
from autotune.domain.trial import StudyPhase, Trial
from autotune.engine.ports import StudyStore
from autotune.engine.study_loop import attempt_uid
from autotune.engine.study_service import StudyService
from autotune.errors import NotFound
from tests import builders
from tests.fakes import InMemoryStudyStore, ManualClock

EVIL = "</script><img src=x onerror=alert(1)><b>bold</b>"


class OneSpace:
    """Implements SpaceSource: `builders.space()`."""

    def names(self) -> list[str]:
        return ["tiny"]

    def space(self, name: str) -> SearchSpace:
        if name != "tiny":
            raise NotFound(f"there is no search space {name}; known: tiny")
        return builders.space()


class OneTemplate:
    """Implements TemplateSource: `simulated-910c` with one model."""

    def names(self) -> list[str]:
        return ["simulated-910c"]

    def template(self, name: str) -> LaunchTemplate:
        role = RoleTemplate(argv=("/secret/bin/serve", "{model_path}"))
        models = {"tiny-model": "/secret/models/tiny"}
        return LaunchTemplate(
            name=name, engine="vllm-ascend", about="For tests.", roles={"server": role}, models=models
        )


class EmptyableStore(InMemoryStudyStore):
    """A store that several tests can use one after the other."""

    def empty(self) -> None:
        """As when it was new."""
        InMemoryStudyStore.__init__(self)


@dataclass
class RunningApi:
    """Where it answers, what it stores, where it keeps files."""

    url: str
    store: InMemoryStudyStore
    settings: Settings
    client: httpx.Client

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.client.get(path, params=params)

    def create(self, **changes: Any) -> Study:
        return self.store.create_study(builders.study_spec(**changes), builders.space())


@contextmanager
def running(tmp_path: Path, store: InMemoryStudyStore | None = None, **changes: Any) -> Iterator[RunningApi]:
    """Stopped at the end of the block, as by a signal."""
    settings = Settings(data=tmp_path, port=0, **changes)
    settings.directory.prepare()
    store = store or InMemoryStudyStore()
    service = StudyService(store, OneSpace(), OneTemplate(), ManualClock())
    app = create_app(settings, service, store, OneSpace(), OneTemplate())
    listener = bind(settings)
    server = Api(app, settings, url_of(listener))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        with httpx.Client(base_url=url_of(listener), timeout=20, trust_env=False) as client:
            yield RunningApi(url_of(listener), store, settings, client)
    finally:
        server.should_exit = True
        thread.join()


def wait_until(what: Any, seconds: float = 30) -> None:
    """Until the condition holds; fails loudly."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)


def started(
    store: StudyStore,
    study: Study,
    phase: StudyPhase = StudyPhase.SEARCH,
    label: str = "search",
    values: Mapping[str, KnobValue] | None = None,
) -> Trial:
    """A running trial."""
    store.set_phase(study.id, phase)
    trial = store.add_trial(study.id, builders.new_trial(phase, label, values))
    return store.start_attempt(study.id, trial.number, attempt_uid(study, trial.number, 1))


def measured(store: StudyStore, study: Study, trial: Trial, tpot_ms: float = 10.0, **outcome: Any) -> Trial:
    """The trial with a measurement and its verdict."""
    uid = attempt_uid(study, trial.number, 1)
    found: TrialOutcome = builders.outcome(uid, tpot_ms=tpot_ms, **outcome)
    assert found.measurement is not None
    verdict = judge(found.measurement, study.spec.objective, study.spec.sla)
    return store.finish_trial(study.id, trial.number, 1, found, verdict)


def failed(store: StudyStore, study: Study, trial: Trial, log_tail: str = "") -> Trial:
    """The trial without one."""
    failure = builders.failure(log_tail=log_tail, decisive_line="RuntimeError: NPU out of memory", exit_code=1)
    outcome = builders.outcome(attempt_uid(study, trial.number, 1), failure=failure)
    return store.finish_trial(study.id, trial.number, 1, outcome, None)


def done(api: RunningApi) -> Study:
    """A finished study: two gate launches, one search trial that fails, one that wins twice in the confirmation."""
    study = api.create()
    store = api.store
    for _ in range(2):
        measured(store, study, started(store, study, StudyPhase.GATE, "baseline"))
    failed(store, study, started(store, study, values={"buffer_mb": 4096}), log_tail=EVIL)
    better: dict[str, KnobValue] = {"expansion_mode": "AIV", "draft_length": 2}
    measured(store, study, started(store, study, values=better), tpot_ms=8.0)
    for wobble in (0.01, -0.01):
        base = started(store, study, StudyPhase.CONFIRM, "baseline")
        measured(store, study, base, tpot_ms=10.0 + wobble)
        measured(store, study, started(store, study, StudyPhase.CONFIRM, "finalist-1", better), tpot_ms=8.0 + wobble)
    return store.finish_study(study.id, StudyState.DONE, "proven: 20 % better")
