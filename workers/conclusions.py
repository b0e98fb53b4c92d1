"""What an attempt concludes from its commands, its servers' words and its samples, however its servers ran."""

from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from autotune.domain.effective import EffectiveConfig
from autotune.domain.goodput import Goal
from autotune.domain.host_load import HostLoad
from autotune.domain.job import Provenance
from autotune.domain.knobs import SERVER
from autotune.domain.measurement import LevelMeasurement, Measurement, RequestSample, Trust, summarise
from autotune.domain.objective import Limit, goals
from autotune.domain.server_truth import ServerTruth
from autotune.domain.stop_rule import Decision
from autotune.domain.template import LaunchTemplate
from autotune.domain.trust import assess
from autotune.domain.workload import LoadLevel, Workload
from workers.redaction import redact, redact_environment
from workers.role_command import RoleCommand

ROUTER = "router"  # where a deployment has one, it is what the load talks to
MAX_ERROR_SHARE = 0.5  # with more failed requests than this in a level, there is nothing to compare


class NotApplied(NamedTuple):
    """Settings that a server did not read; `line` is its own word on it, where it has one."""

    summary: str
    line: str | None


class BrokenLevel(NamedTuple):
    """A level of which most requests failed, and the commonest of their errors."""

    summary: str
    commonest: str


def endpoint(template: LaunchTemplate) -> str:
    """The role that the load talks to."""
    return next((role for role in (ROUTER, SERVER) if role in template.roles), next(iter(template.roles)))


def provenance(
    template: LaunchTemplate, commands: Mapping[str, RoleCommand], secrets: Sequence[str], *, virtual_time: bool = False
) -> Provenance:
    """Where and with what an attempt runs, with secrets masked."""
    roles = {
        name: command.launched.model_copy(
            update={
                "argv": tuple(redact(word, secrets) for word in command.launched.argv),
                "env": redact_environment(command.launched.env, secrets),
                "run": tuple(redact(word, secrets) for word in command.launched.run),
                "client_env": redact_environment(command.launched.client_env, secrets),
            }
        )
        for name, command in commands.items()
    }
    return Provenance(
        host=socket.gethostname(),
        version=_version(),
        template=template.name,
        simulated=template.simulated,
        virtual_time=virtual_time,
        roles=roles,
    )


def not_applied(effective: Mapping[str, EffectiveConfig]) -> NotApplied | None:
    """The first role that runs without settings of its plan: what would be measured is another configuration."""
    for role, config in effective.items():
        if config.ignored:
            names = ", ".join(ignored.setting for ignored in config.ignored)
            line = next((ignored.line for ignored in config.ignored if ignored.line), None)
            return NotApplied(f"{role} runs without settings of its plan: {names}", line)
    return None


def broken_level(levels: Mapping[str, Sequence[RequestSample]]) -> BrokenLevel | None:
    """The first level with more than `MAX_ERROR_SHARE` of its requests failed."""
    for name, samples in levels.items():
        errors = [sample.error for sample in samples if sample.error is not None]
        if len(errors) > MAX_ERROR_SHARE * len(samples):
            summary = f"{name}: {len(errors)} of {len(samples)} requests failed"
            return BrokenLevel(summary, max(sorted(set(errors)), key=errors.count))
    return None


def measured(
    workload: Workload,
    samples: Mapping[str, Sequence[RequestSample]],
    effective: Mapping[str, EffectiveConfig],
    server: Mapping[str, Mapping[str, ServerTruth]] | None = None,
    *,
    stopped: Mapping[str, Decision] | None = None,
    sla: Sequence[Limit] = (),
    host: HostLoad | None = None,
) -> Measurement:
    """The measurement of one launch; what the engine corrected or did not prove makes it less trusted.

    `server`: what the counters of each role say, by level; `stopped`: why those with a precision ended. `sla` is what
    goodput counts by, `host` how the load generator's own host fared.
    """
    told, ends = server or {}, stopped or {}
    levels = [
        _level(level, samples[level.name], goals(sla, level.name), told.get(level.name, {}), ends.get(level.name))
        for level in workload.levels
    ]
    measurement = assess(workload, samples, levels, host)
    configs = effective.values()
    reasons = [str(change) for config in configs for change in config.corrected]
    reasons += [f"{setting} could not be verified" for config in configs for setting in config.unproven]
    if not reasons:
        return measurement
    return measurement.model_copy(
        update={
            "trust": Trust.WARN if measurement.trust is Trust.OK else measurement.trust,
            "trust_reasons": (*measurement.trust_reasons, *reasons),
        }
    )


def _level(
    level: LoadLevel,
    samples: Sequence[RequestSample],
    wanted: Sequence[Goal],
    server: Mapping[str, ServerTruth],
    stopped: Decision | None,
) -> LevelMeasurement:
    """The figures of a level. The paces of one that stopped are those of the requests on which it stopped.

    With its first round and those that ended alone, few requests come out 1 to 2 % faster than many.
    """
    found = summarise(level.name, level.concurrency, samples, level.mean_rate_per_s, wanted)
    more: dict[str, Any] = {"server": dict(server), "stopped": stopped}
    if stopped is not None and stopped.mean_ms is not None:
        ended = sorted(samples, key=lambda sample: sample.t_last_s)[: stopped.requests]
        counted = ended[level.concurrency :] if level.concurrency > 1 else ended
        paces = summarise(level.name, level.concurrency, counted, None, wanted)
        more |= {name: getattr(paces, name) for name in ("tpot_ms", "decode_tpot_ms", "itl_ms", "icl_ms")}
    return found.model_copy(update=more)


def _version() -> str:
    try:
        return importlib.metadata.version("ascend-autotune")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
