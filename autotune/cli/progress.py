"""Progress of a study on stderr: a bar on a terminal, a line for every step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import typer

from autotune.cli.answers import Overview
from autotune.cli.tables import figure, gain


class Progress(Protocol):
    """Where news of a study go."""

    def show(self, overview: Overview) -> None: ...

    def note(self, text: str) -> None: ...


def summary(overview: Overview) -> str:
    """`search, 2 running, 3 failed, best 4.87 ms (+24.6 %)`."""
    objective = overview.study.spec.objective.metric
    unit = "ms" if objective.endswith("_ms") else "tok/s"
    parts = [str(overview.study.phase)]
    parts += [f"{n} {state}" for state in ("running", "failed") if (n := overview.counts.get(state, 0))]
    if overview.best is not None:
        best = figure(overview.best.objective, unit)
        parts.append(f"best {best} ({gain(overview.best.gain_pct)}, trial {overview.best.number})")
    elif overview.baseline_objective is not None:
        parts.append(f"baseline {figure(overview.baseline_objective, unit)}")
    return ", ".join(parts)


class LineProgress:
    """A line whenever the number of finished trials, the phase or the best changes."""

    def __init__(self) -> None:
        self._last: tuple[object, ...] = ()

    def show(self, overview: Overview) -> None:
        best = overview.best.number if overview.best else None
        news = (overview.finished_trials, overview.study.phase, overview.study.state, best)
        if news != self._last:
            self._last = news
            study = overview.study
            done = f"{overview.finished_trials} of at most {study.spec.budget.trials} trials"
            typer.echo(f"study {study.id} {study.spec.name}: {done}, {summary(overview)}", err=True)

    def note(self, text: str) -> None:
        typer.echo(text, err=True)


@contextmanager
def progress_on_stderr() -> Iterator[Progress]:
    """The form that fits what stderr is; the bar is gone afterwards."""
    if not sys.stderr.isatty():
        yield LineProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.fields[name]}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", name="study", total=None)

        class BarProgress:
            def show(self, overview: Overview) -> None:
                study = overview.study
                bars.update(
                    task,
                    name=f"study {study.id} {study.spec.name}",
                    total=study.spec.budget.trials,
                    completed=overview.finished_trials,
                    description=summary(overview),
                )

            def note(self, text: str) -> None:
                bars.console.print(text, markup=False)

        yield BarProgress()
