import subprocess
from tests.api.conftest import *
from tests.api.running_api import failed, started, measured
from autotune.domain.trial import StudyPhase
from autotune.domain.failure import FailureClass
from autotune.engine.study_loop import attempt_uid
from tests import builders
def test_it(api):
    study = api.create(); store = api.store
    measured(store, study, started(store, study, StudyPhase.GATE, "baseline"))
    t = started(store, study, values={"buffer_mb": 4096})
    gone = builders.failure(FailureClass.INFRASTRUCTURE, summary="worker lost", decisive_line="raylet died", host="host-b")
    store.lose_attempt(study.id, t.number, 1, gone)
    store.start_attempt(study.id, t.number, attempt_uid(study, t.number, 2))
    f = builders.failure(log_tail="loading\n(W) RuntimeError: NPU out of memory\nbye <b>x</b>", decisive_line="RuntimeError: NPU out of memory", exit_code=1)
    store.finish_trial(study.id, t.number, 2, builders.outcome(attempt_uid(study, t.number, 2), failure=f), None)
    url = str(api.client.base_url) if hasattr(api,'client') else api.url
    p = subprocess.run(["chromium","--headless","--no-sandbox","--disable-gpu","--window-size=1400,1300","--user-data-dir=/tmp/chr-e5","--virtual-time-budget=8000","--screenshot=/tmp/page-e5.png",f"{url}/studies/{study.id}#trial=1"],capture_output=True,text=True,timeout=100)
    print(p.stderr[-500:])
