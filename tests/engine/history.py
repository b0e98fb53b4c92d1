"""Makes lists of finished trials, as a store would give them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from autotune.domain.failure import Failure
from autotune.domain.knobs import KnobValue
from autotune.domain.objective import judge
from autotune.domain.study import StudySpec
from autotune.domain.trial import StudyPhase, Trial, TrialState
from tests import builders

START = datetime(2026, 1, 1, tzinfo=UTC)


class History:
    """Appends trials with rising numbers, ten seconds each."""

    def __init__(self, spec: StudySpec | None = None) -> None:
        self.spec = spec or builders.study_spec()
        self.trials: list[Trial] = []

    def add(
        self,
        phase: StudyPhase,
        label: str = "search",
        values: Mapping[str, KnobValue] | None = None,
        tpot_ms: float | Mapping[str, float] | None = 10.0,
        ttft_ms: float = 100.0,
        failure: Failure | None = None,
        state: TrialState | None = None,
    ) -> Trial:
        """A measured trial; a failed one with `failure`; any other with `state`."""
        new = builders.new_trial(phase, label, values)
        started = START + timedelta(seconds=10 * len(self.trials))
        fields: dict[str, Any] = {}
        if state is None and failure is None:
            measured = builders.measurement(tpot_ms=tpot_ms or 10.0, ttft_ms=ttft_ms)
            fields = {
                "state": TrialState.MEASURED,
                "measurement": measured,
                "verdict": judge(measured, self.spec.objective, self.spec.sla),
                "provenance": builders.provenance(),
            }
        elif state is None:
            fields = {"state": TrialState.FAILED, "failure": failure}
        else:
            fields = {"state": state}
        trial = Trial(
            study_id=1,
            number=len(self.trials),
            attempt=1,
            created_at=started,
            started_at=started,
            finished_at=started + timedelta(seconds=10),
            **new.model_dump(include={"phase", "label", "proposal", "repairs", "warnings"}),
            candidate=new.candidate,
            plan=new.plan,
            **fields,
        )
        self.trials.append(trial)
        return trial

    def gate(self, tpot_ms: float = 14.0) -> History:
        for i in range(self.spec.gate_launches):
            self.add(StudyPhase.GATE, "baseline", tpot_ms=tpot_ms * (1 + 0.002 * i))
        return self

    def recipe(self, tpot_ms: float = 12.0) -> History:
        self.add(StudyPhase.RECIPES, "aiv", {"expansion_mode": "AIV"}, tpot_ms)
        return self

    @property
    def now(self) -> datetime:
        return START + timedelta(seconds=10 * len(self.trials))
