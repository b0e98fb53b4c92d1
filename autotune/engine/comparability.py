"""What the trials of a study are compared with, from the stored trials alone: a restart changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.domain.conditions import Conditions
from autotune.domain.measurement import Measurement, Trust
from autotune.domain.trial import StudyPhase, Trial


def reference(trials: Iterable[Trial], trial: Trial, measurement: Measurement) -> Conditions:
    """The conditions that a trial's new measurement is held to: the median over the gate's launches.

    A launch of the gate is held to those that ended before it and to itself, since verdicts are final: the first
    one can differ from nobody. All others come after the gate and are held to the whole of it.
    """
    gate = [
        other.measurement
        for other in trials
        if other.phase is StudyPhase.GATE
        and other.number != trial.number
        and other.measurement is not None
        and other.measurement.trust is not Trust.INVALID
    ]
    return Conditions.median([*gate, measurement] if trial.phase is StudyPhase.GATE else gate)


def is_comparable(trial: Trial) -> bool:
    """Whether the trial's figures may stand beside the baseline's: trusted, and of the same load."""
    if trial.measurement is not None and trial.measurement.trust is Trust.INVALID:
        return False
    return trial.verdict is None or trial.verdict.comparable
