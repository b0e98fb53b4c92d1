"""A whole study on virtual time: the service as it is, and no server process at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autotune.domain.export import to_json
from autotune.domain.recipe import Recipe
from tests.e2e.running_service import running

LOAD: dict[str, Any] = {
    "prompt_tokens": 1024,
    "output_tokens": 256,
    "levels": [{"concurrency": 1, "requests": 10}, {"concurrency": 8, "requests": 40}],
    "warmup_requests": 2,
}


def test_a_study_on_virtual_time_finds_what_a_study_on_the_wall_clock_would_need_an_hour_for(tmp_path: Path) -> None:
    with running(tmp_path / "data", executor="virtual") as service:
        study_id = service.create(
            workload=LOAD, budget={"trials": 24, "wall_time_s": 600}, confirmation={"finalists": 1, "rounds": 3}
        )
        study = service.wait_until_finished(study_id)
        assert study["state"] == "done", study
        trials = service.trials(study_id)
        assert service.server_processes() == []
        result = service.client.get(f"/api/v1/studies/{study_id}/recipe").json()
        log = service.client.get(f"/api/v1/studies/{study_id}/trials/0/log")
    assert {trial["phase"] for trial in trials} == {"gate", "recipes", "search", "confirm"}
    assert {trial["state"] for trial in trials} <= {"measured", "failed"}
    assert sum(trial["state"] == "measured" for trial in trials) >= 8
    for trial in trials:
        assert trial["provenance"]["virtual_time"]
        assert trial["attempt"] == 1
    assert sum(sum(trial["durations_s"].values()) for trial in trials) > 1200
    recipe = json.loads(to_json(Recipe.model_validate(result)))
    assert (recipe["confirmed"], recipe["simulated"]) == (True, True)
    assert recipe["gain_pct"]["c1"]["low"] > 20  # drafts alone give that much
    assert "Application startup complete" in log.text
