"""Bodies of `autotune trials` and `autotune trial`."""

from __future__ import annotations

import shlex

import typer

from autotune.cli.answers import FailureAbout, TrialDetail, TrialLine
from autotune.cli.client import Client
from autotune.cli.tables import NOTHING, changes_in_words, figure, harmless, print_json, shortened, table
from autotune.domain.failure import LogContext
from autotune.domain.measurement import Quantiles
from autotune.domain.objective import NOT_COMPARABLE
from autotune.domain.server_truth import ServerTruth


def listing(
    url: str,
    study_id: int,
    *,
    state: str | None,
    phase: str | None,
    failure_class: str | None,
    as_json: bool,
) -> None:
    """The trials of a study, by number; TPOT in ms by load level."""
    with Client(url) as client:
        path = f"/studies/{study_id}/trials"
        items = list(client.pages(path, state=state, phase=phase, failure_class=failure_class))
        lines = [client.understood(TrialLine, item) for item in items]
    if as_json:
        print_json({"items": items, "total": len(items)})
        return
    levels = list(dict.fromkeys(level for line in lines for level in line.tpot_ms))
    rows = [
        [
            str(line.number),
            line.phase,
            line.label,
            line.state,
            figure(line.verdict.objective if line.verdict else None),
            *(figure(line.tpot_ms.get(level)) for level in levels),
            shortened(_note(line)),
        ]
        for line in lines
    ]
    head = ["trial", "phase", "label", "state", "objective", *(f"tpot {level}" for level in levels), "settings, or why"]
    typer.echo(table(head, rows, right=(0, *range(4, 5 + len(levels)))) if rows else "no trials")


def _note(line: TrialLine) -> str:
    settings = changes_in_words(line.changes)
    if line.failure is not None:
        reason = f"{line.failure.failure_class} at {line.failure.phase}: {line.failure.summary}"
        return f"{reason} [{settings}]" if settings else reason
    if line.verdict is not None and line.verdict.reasons:
        return f"{'; '.join(line.verdict.reasons)} [{settings}]"
    return settings


def show(url: str, study_id: int, number: int, *, as_json: bool) -> None:
    """One trial with everything that is known of it."""
    with Client(url) as client:
        answer = client.get(f"/studies/{study_id}/trials/{number}")
        trial = client.understood(TrialDetail, answer)
    if as_json:
        print_json(answer)
        return
    typer.echo("\n".join([*_facts(trial), *_figures(trial), *_attempts(trial), *_command(trial), *_failure(trial)]))


def _facts(trial: TrialDetail) -> list[str]:
    verdict = trial.verdict
    rows = [
        ["phase", f"{trial.phase} ({trial.label}), attempt {trial.attempt}"],
        ["settings", changes_in_words(trial.changes) or "as the baseline"],
        ["objective", figure(verdict.objective if verdict else None)],
        ["durations", ", ".join(f"{name} {value:.1f} s" for name, value in trial.durations_s.items()) or NOTHING],
    ]
    rows += [_infeasible(reason) for reason in (verdict.reasons if verdict else ())]
    rows += [["repaired by", name] for name in trial.repairs]
    rows += [["warning", warning] for warning in trial.warnings]
    if trial.measurement:
        rows.append(
            ["trust", f"{trial.measurement.trust}: {'; '.join(trial.measurement.trust_reasons) or 'no doubts'}"]
        )
    return table([f"trial {trial.number}", str(trial.state)], rows).splitlines()


def _infeasible(reason: str) -> list[str]:
    kind, colon, rest = reason.partition(": ")
    if colon and kind == NOT_COMPARABLE:
        return [kind, shortened(rest, 200)]
    return ["outside the limits", shortened(reason, 200)]


def _figures(trial: TrialDetail) -> list[str]:
    if trial.measurement is None:
        return []
    rows = []
    for level in trial.measurement.levels.values():
        times = [*_mean_and_p99(level.tpot_ms), *_mean_and_p99(level.ttft_ms)]
        rows.append([level.level, *times, figure(level.output_tok_s), f"{level.failed}/{level.sent}"])
    head = ["level", "tpot ms", "p99", "ttft ms", "p99", "output tok/s", "failed"]
    told = [
        _counters(level.level, role, truth)
        for level in trial.measurement.levels.values()
        for role, truth in level.server.items()
    ]
    return ["", *table(head, rows, right=range(1, 7)).splitlines(), *_server(told)]


def _server(told: list[list[str]]) -> list[str]:
    """What the servers' own counters say."""
    head = ["by the server", "role", "requests", "tokens", "cached", "tpot ms", "ttft ms", "tokens a step", "preempted"]
    return ["", *table(head, told, right=range(2, 9)).splitlines()] if told else []


def _counters(level: str, role: str, truth: ServerTruth) -> list[str]:
    counts = [truth.finished, truth.generation_tokens, truth.cached_tokens]
    times = [truth.tpot_mean_ms, truth.ttft_mean_ms, truth.accept_len]
    return [level, role, *map(figure, counts), *map(figure, times), figure(truth.preemptions)]


def _mean_and_p99(values: Quantiles | None) -> list[str]:
    return [figure(values.mean if values else None), figure(values.p99 if values else None)]


def _command(trial: TrialDetail) -> list[str]:
    lines: list[str] = []
    for name, role in trial.provenance.roles.items() if trial.provenance else ():
        lines += ["", f"command of role {name}:"]
        lines += [f"  {key}={shlex.quote(value)}" for key, value in sorted(role.env.items())]
        lines.append(f"  {shlex.join(role.argv)}")
    return lines


def _attempts(trial: TrialDetail) -> list[str]:
    """Every launch, where there was more than one."""
    if len(trial.attempts) < 2:
        return []
    rows = [
        [
            str(one.attempt),
            f"{one.started_at:%Y-%m-%d %H:%M:%S}",
            one.host or NOTHING,
            one.ended or "running",
            one.failure_class or NOTHING,
            shortened(one.decisive_line or one.summary or NOTHING, 120),
        ]
        for one in trial.attempts
    ]
    return ["", *table(["attempt", "started", "host", "ended", "class", "why"], rows, right=(0,)).splitlines()]


def _failure(trial: TrialDetail) -> list[str]:
    failure = trial.failure
    if failure is None:
        return []
    code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
    lines = ["", f"failed at {failure.phase}: {failure.failure_class}{code}", f"  {shortened(failure.summary, 300)}"]
    if trial.about is not None:
        lines += [f"  {trial.about.means}", f"  likely cause: {trial.about.cause}", *_involved(trial.about)]
    if trial.policy is not None:
        lines.append(f"  what the study does: {trial.policy.sentence}")
    if trial.context is not None:
        lines += ["", "the line that decided, in its log:", *_context(trial.context)]
    elif failure.decisive_line:
        lines.append(f"  {shortened(failure.decisive_line, 300)}")
    tail = harmless(failure.log_tail or trial.log_tail).splitlines()[-40:]
    return [*lines, "", "end of its log:", *(f"  {line}" for line in tail)] if tail else lines


def _involved(about: FailureAbout) -> list[str]:
    names = [one.name if one.asked is None else f"{one.name}={shortened(one.asked, 60)}" for one in about.settings]
    return [f"  settings involved: {', '.join(names)}"] if names else []


def _context(context: LogContext) -> list[str]:
    marks = (">" if i == context.decisive else " " for i in range(len(context.lines)))
    return [f"{mark} {shortened(harmless(line), 300)}" for mark, line in zip(marks, context.lines, strict=True)]
