"""What the event log says: kinds and their data. Small on purpose; the rest is in the study and the trial."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from autotune.domain.device import Quarantine
from autotune.domain.failure import Failure
from autotune.domain.study import Study
from autotune.domain.trial import Trial


class EventKind(StrEnum):
    """Every kind of event."""

    STUDY_CREATED = "study_created"
    STUDY_PHASE = "study_phase"
    STUDY_FINISHED = "study_finished"
    STUDY_RESUMED = "study_resumed"
    TRIAL_ADDED = "trial_added"
    TRIAL_STARTED = "trial_started"
    TRIAL_FINISHED = "trial_finished"
    TRIAL_CANCELLED = "trial_cancelled"
    ATTEMPT_LOST = "attempt_lost"
    DEVICE_QUARANTINED = "device_quarantined"
    DEVICE_RELEASED = "device_released"


def study_data(study: Study) -> dict[str, Any]:
    """Keys: name, state, phase, and finding where there is one."""
    data: dict[str, Any] = {"name": study.spec.name, "state": study.state.value, "phase": study.phase.value}
    if study.finding is not None:
        data["finding"] = study.finding
    return data


def trial_data(trial: Trial, lost: Failure | None = None) -> dict[str, Any]:
    """Keys: state, phase, label, attempt; where known also objective, feasible, failure_class, tpot_ms.

    `tpot_ms` maps a load level to its mean. `lost` is the failure of an attempt that does not end its trial;
    it adds its summary.
    """
    data: dict[str, Any] = {
        "state": trial.state.value,
        "phase": trial.phase.value,
        "label": trial.label,
        "attempt": trial.attempt,
    }
    if trial.verdict is not None:
        data["feasible"] = trial.verdict.feasible
        if trial.verdict.objective is not None:
            data["objective"] = trial.verdict.objective
    if trial.measurement is not None:
        levels = trial.measurement.levels.values()
        data["tpot_ms"] = {level.level: level.tpot_ms.mean for level in levels if level.tpot_ms is not None}
    failure = lost or trial.failure
    if failure is not None:
        data["failure_class"] = failure.failure_class.value
    if lost is not None:
        data["summary"] = lost.summary
    return data


def device_data(quarantine: Quarantine) -> dict[str, Any]:
    """Keys: host, device, reason. The event is one of the trial whose attempt had the device last."""
    return {"host": quarantine.host, "device": quarantine.device, "reason": quarantine.reason}
