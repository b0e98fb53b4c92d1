"""Body of `autotune demo`: one study from start to end, with a server of its own."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from autotune.cli.answers import Overview, TrialDetail, TrialLine
from autotune.cli.choices import Executor
from autotune.cli.client import Client
from autotune.cli.exports import EXECUTABLE, READABLE, rendered, write
from autotune.cli.local_service import LocalService, remove_old_data
from autotune.cli.progress import progress_on_stderr
from autotune.cli.result import outcomes_of, result_as_json, result_in_words
from autotune.cli.studies import create_study
from autotune.cli.tables import print_json
from autotune.cli.watch import INTERRUPTED, exit_code, follow
from autotune.documents import file_text, read_study
from autotune.domain.recipe import Recipe
from autotune.domain.study import StudyState
from autotune.errors import InvalidRequest, Problem, Unavailable

FILES = ("launch.sh", "recipe.json", "trials.json", "env", "up.log")
GRACE_S = 600.0  # beyond the study's own budget of time: launches that were begun, and the confirmation
TERMINATED = 128 + signal.SIGTERM


def run_demo(file: Path, out: Path, executor: Executor, *, as_json: bool) -> int:
    """Start a server, run the study, write the results below `out`, end the server. Gives the exit code."""
    spec = read_study(file_text(file), str(file))
    _prepare(out)
    try:
        with (
            _ended_by_sigterm(),
            LocalService(out / "data", out / "up.log", executor, spec.parallel_trials) as service,
            Client(_url(service)) as client,
        ):
            overview = _study(client, file, service, spec.budget.wall_time_s + GRACE_S)
            done = overview.study.state is StudyState.DONE
            recipe = client.read(Recipe, f"/studies/{overview.study.id}/recipe") if done else None
            outcomes = outcomes_of(client, overview.study.id)
            _write_trials(client, overview, out / "trials.json")
    except KeyboardInterrupt:
        typer.echo("interrupted; the server was ended", err=True)
        return INTERRUPTED
    if recipe is not None:
        texts = rendered(recipe)
        write(out / "launch.sh", texts["sh"], EXECUTABLE)
        write(out / "recipe.json", texts["json"], READABLE)
        write(out / "env", texts["env"], READABLE)
    if as_json:
        print_json({**result_as_json(overview, recipe, outcomes), "out": str(out)})
    else:
        typer.echo(result_in_words(overview, recipe, outcomes))
        written = [str(out / name) for name in FILES if (out / name).exists()]
        typer.echo(f"\nwrote {', '.join(written)}")
    return exit_code(overview)


def _prepare(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        remove_old_data(out / "data")
        for name in FILES:
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidRequest(f"{out} can't be used: {reason}", [Problem("out", reason, file=str(out))]) from error


def _url(service: LocalService) -> str:
    typer.echo("starting the server", err=True)
    return service.url()


def _study(client: Client, file: Path, service: LocalService, limit_s: float) -> Overview:
    created = create_study(client, file)
    deadline = time.monotonic() + limit_s

    def check() -> None:
        service.check()
        if time.monotonic() > deadline:
            raise Unavailable(f"the study did not end within {limit_s:.0f} s")

    with progress_on_stderr() as progress:
        return follow(client, created.id, progress, check=check)


def _write_trials(client: Client, overview: Overview, path: Path) -> None:
    base = f"/studies/{overview.study.id}/trials"
    numbers = [client.understood(TrialLine, item).number for item in client.pages(base)]
    trials = [_trial(client.read(TrialDetail, f"{base}/{number}")) for number in numbers]
    write(path, json.dumps(trials, indent=2, ensure_ascii=False) + "\n", READABLE)


def _trial(trial: TrialDetail) -> dict[str, Any]:
    levels = trial.measurement.levels if trial.measurement else {}
    failure = trial.failure
    return {
        "number": trial.number,
        "phase": trial.phase,
        "state": trial.state,
        "label": trial.label,
        "attempt": trial.attempt,
        "candidate": trial.candidate.values,
        "changes": {knob: {"from": old, "to": new} for knob, (old, new) in trial.changes.items()},
        "failure": None
        if failure is None
        else {
            "phase": failure.phase,
            "class": failure.failure_class,
            "exit_code": failure.exit_code,
            "summary": failure.summary,
            "decisive_line": failure.decisive_line,
            "log_tail": failure.log_tail or trial.log_tail,
        },
        "tpot_ms": {name: level.tpot_ms.mean for name, level in levels.items() if level.tpot_ms},
        "ttft_ms": {name: level.ttft_ms.mean for name, level in levels.items() if level.ttft_ms},
        "objective": trial.verdict.objective if trial.verdict else None,
        "feasible": trial.verdict.feasible if trial.verdict else None,
        "reasons": list(trial.verdict.reasons) if trial.verdict else [],
        "durations_s": trial.durations_s,
    }


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds the stack, so that the server ends with us."""

    def end(*_: object) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
