"""What the API sends where a domain value is not sent as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from autotune.domain.candidate import Candidate
from autotune.domain.failure import Failure, FailureClass, LogContext, Phase, RetryPolicy, in_context
from autotune.domain.knobs import KnobValue
from autotune.domain.measurement import Quantiles, Trust
from autotune.domain.retry import Policy, policy, policy_of_attempt
from autotune.domain.space import SearchSpace
from autotune.domain.template import LaunchTemplate
from autotune.domain.trial import LOST, Attempt, StudyPhase, Trial, TrialState
from autotune.domain.value import Value
from autotune.engine.overview import StudyOverview
from workers.failures.asked import asked_settings
from workers.failures.page import Setting, involved
from workers.failures.signatures import catalogue

Changes = dict[str, tuple[KnobValue, KnobValue]]
"""Knob to (the baseline's value, this candidate's); null stands for unset."""


class StudyList(Value):
    """A slice of the studies, newest first."""

    items: tuple[StudyOverview, ...]
    total: int
    offset: int
    limit: int


class FailureLine(Value):
    """A failure without its log."""

    phase: Phase
    failure_class: FailureClass
    summary: str


class VerdictLine(Value):
    """A verdict without its margins."""

    feasible: bool
    objective: float | None
    comparable: bool
    reasons: tuple[str, ...]


class TrialLine(Value):
    """A trial in a list: means by load level, no plan, no log. Times of requests in ms."""

    study_id: int
    number: int
    state: TrialState
    phase: StudyPhase
    label: str
    attempt: int
    changes: Changes
    verdict: VerdictLine | None
    failure: FailureLine | None
    trust: Trust | None
    tpot_ms: dict[str, float | None]
    ttft_ms: dict[str, float | None]
    output_tok_s: dict[str, float]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class TrialList(Value):
    """A slice of a study's trials, by number."""

    items: tuple[TrialLine, ...]
    total: int
    offset: int
    limit: int


class AttemptLine(Value):
    """One launch of a trial, without its log. `ended` is null while it runs; `policy` where it was lost."""

    attempt: int
    started_at: datetime
    ended_at: datetime | None
    ended: str | None
    host: str | None
    phase: Phase | None
    failure_class: FailureClass | None
    summary: str | None
    decisive_line: str | None
    exit_code: int | None
    policy: Policy | None


class FailureAbout(Value):
    """What the catalogue knows of a failure: what it means, where it usually comes from, which settings are involved.

    `settings` are those of this launch that the message names or that are often to blame. `retry` says whether
    another launch is worth it.
    """

    means: str
    cause: str
    settings: tuple[Setting, ...]
    retry: RetryPolicy


class TrialDetail(Trial):
    """A trial with its difference from the baseline and every launch of it.

    `context` is the decisive line with its neighbours in the log, `about` what is known of such a failure, `policy`
    what the study does about it.
    """

    changes: Changes
    attempts: tuple[AttemptLine, ...]
    context: LogContext | None
    about: FailureAbout | None
    policy: Policy | None


class SpaceLine(Value):
    """A search space in a list."""

    name: str
    engine: str
    chip: str
    about: str
    knobs: int
    recipes: int


class TemplateLine(Value):
    """A launch template: what a study may name. Paths and commands stay on the host."""

    name: str
    engine: str
    about: str
    models: tuple[str, ...]
    simulated: bool


class Part(Value):
    """One part that the service needs; `reason` says what is wrong with it."""

    ok: bool
    reason: str


class Health(Value):
    """The process answers."""

    status: str


class Readiness(Value):
    """Whether a study that is created now will be worked on."""

    ready: bool
    parts: dict[str, Part]


def trial_line(trial: Trial, baseline: Candidate) -> TrialLine:
    """The line of a trial in a list."""
    levels = {} if trial.measurement is None else trial.measurement.levels
    verdict = trial.verdict
    failure = trial.failure
    return TrialLine(
        study_id=trial.study_id,
        number=trial.number,
        state=trial.state,
        phase=trial.phase,
        label=trial.label,
        attempt=trial.attempt,
        changes=baseline.difference(trial.candidate),
        verdict=None
        if verdict is None
        else VerdictLine(
            feasible=verdict.feasible,
            objective=verdict.objective,
            comparable=verdict.comparable,
            reasons=verdict.reasons,
        ),
        failure=None
        if failure is None
        else FailureLine(phase=failure.phase, failure_class=failure.failure_class, summary=failure.summary),
        trust=None if trial.measurement is None else trial.measurement.trust,
        tpot_ms={name: _mean(level.tpot_ms) for name, level in levels.items()},
        ttft_ms={name: _mean(level.ttft_ms) for name, level in levels.items()},
        output_tok_s={name: level.output_tok_s for name, level in levels.items()},
        created_at=trial.created_at,
        started_at=trial.started_at,
        finished_at=trial.finished_at,
    )


def trial_detail(trial: Trial, baseline: Candidate, attempts: Sequence[Attempt]) -> TrialDetail:
    """The whole trial."""
    failure = trial.failure
    return TrialDetail(
        **dict(trial),
        changes=baseline.difference(trial.candidate),
        attempts=tuple(map(_attempt_line, attempts)),
        context=None if failure is None else in_context(failure, trial.log_tail or failure.log_tail),
        about=None if failure is None else _about(failure, trial),
        policy=policy(trial),
    )


def _about(failure: Failure, trial: Trial) -> FailureAbout:
    page = catalogue().classes[failure.failure_class]
    asked = asked_settings(trial.plan.model_dump_json())
    for role in trial.provenance.roles.values() if trial.provenance else ():
        asked |= asked_settings(json.dumps(role.argv)) | role.env
    return FailureAbout(
        means=page.means,
        cause=page.cause,
        settings=involved(failure, asked),
        retry=failure.retry or page.retry,
    )


def _attempt_line(attempt: Attempt) -> AttemptLine:
    failure = attempt.failure
    return AttemptLine(
        attempt=attempt.attempt,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        ended=attempt.ended,
        host=attempt.host,
        phase=failure.phase if failure else None,
        failure_class=failure.failure_class if failure else None,
        summary=failure.summary if failure else None,
        decisive_line=failure.decisive_line if failure else None,
        exit_code=failure.exit_code if failure else None,
        policy=policy_of_attempt(failure) if failure and attempt.ended == LOST else None,
    )


def space_line(space: SearchSpace) -> SpaceLine:
    """The line of a space in a list."""
    return SpaceLine(
        name=space.name,
        engine=space.engine,
        chip=space.chip,
        about=space.about,
        knobs=len(space.knobs),
        recipes=len(space.recipes),
    )


def template_line(template: LaunchTemplate) -> TemplateLine:
    """What may be told about a template."""
    return TemplateLine(
        name=template.name,
        engine=template.engine,
        about=template.about,
        models=tuple(sorted(template.models)),
        simulated=template.simulated,
    )


def _mean(quantiles: Quantiles | None) -> float | None:
    return None if quantiles is None else quantiles.mean
