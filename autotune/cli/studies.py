"""Bodies of `autotune study ...`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from autotune.cli.answers import Overview
from autotune.cli.client import Client
from autotune.cli.parse import study_from_launch
from autotune.cli.progress import summary
from autotune.cli.result import print_result
from autotune.cli.tables import NOTHING, figure, gain, print_json, table
from autotune.cli.watch import watch_to_end
from autotune.documents import file_text, key_path, read_document, read_study
from autotune.domain.study import Study, StudySpec, StudyState
from autotune.errors import InvalidRequest, InvalidStudy


def create(url: str, file: Path, *, watch: bool, as_json: bool) -> int:
    """Check the file here, post the study, say its number. Gives the exit code."""
    with Client(url) as client:
        study = create_study(client, file)
    if watch:
        typer.echo(f"created study {study.id} {study.spec.name}", err=True)
        return watch_to_end(url, study.id, as_json=as_json)
    if as_json:
        print_json(study.model_dump(mode="json"))
    else:
        typer.echo(f"created study {study.id} {study.spec.name}; `autotune watch {study.id}` follows it")
    return 0


def create_study(client: Client, file: Path) -> Study:
    """The new study. Raises InvalidStudy with lines of the file, whoever found the problems."""
    try:
        text = file_text(file)
    except InvalidRequest as error:
        raise InvalidStudy(error.message, error.problems) from error
    spec = _spec(client, text, file)
    try:
        answer = client.post("/studies", spec.model_dump(mode="json"))
    except InvalidRequest as error:
        document = read_document(text, str(file))
        located = [
            replace(p, line=document.line_of(key_path(p.key.split(" (", maxsplit=1)[0])), file=str(file))
            for p in error.problems
        ]
        located.sort(key=lambda p: p.line or 0)
        raise InvalidStudy(f"{file}: {error.message}", located) from error
    return client.understood(Overview, answer).study


def _spec(client: Client, text: str, file: Path) -> StudySpec:
    """The study of the file, with the launch script that its baseline may name in place of knobs."""
    try:
        document = read_document(text, str(file))
    except InvalidRequest:
        return read_study(text, str(file))  # says what is wrong, with all else
    return study_from_launch(client, document, text, file) or read_study(text, str(file))


def listing(url: str, *, as_json: bool) -> None:
    """All studies, newest first."""
    with Client(url) as client:
        items = list(client.pages("/studies"))
        overviews = [client.understood(Overview, item) for item in items]
    if as_json:
        print_json({"items": items, "total": len(items)})
        return
    rows = [
        [
            str(o.study.id),
            o.study.spec.name,
            str(o.study.state),
            str(o.study.phase),
            f"{o.finished_trials}/{o.study.spec.budget.trials}",
            NOTHING if o.best is None else figure(o.best.objective),
            gain(o.best.gain_pct if o.best else None),
            o.study.created_at.strftime("%Y-%m-%d %H:%M"),
        ]
        for o in overviews
    ]
    head = ["id", "name", "state", "phase", "trials", "best", "gain", "created (UTC)"]
    typer.echo(table(head, rows, right=(0, 4, 5, 6)) if rows else "no studies")


def show(url: str, study_id: int, *, as_json: bool) -> None:
    """The result of a study that is done, else how far it is."""
    with Client(url) as client:
        answer = client.get(f"/studies/{study_id}")
        overview = client.understood(Overview, answer)
        if as_json:
            print_json(answer)
        elif overview.study.state is StudyState.DONE:
            print_result(client, overview, as_json=False)
        else:
            typer.echo(_state_in_words(overview))


def change(url: str, study_id: int, action: str, *, as_json: bool) -> None:
    """Cancel or resume."""
    with Client(url) as client:
        answer = client.post(f"/studies/{study_id}/{action}")
        study = client.understood(Overview, answer).study
    if as_json:
        print_json(study.model_dump(mode="json"))
    else:
        typer.echo(f"study {study.id} is {study.state}")


def _state_in_words(overview: Overview) -> str:
    study = overview.study
    spec = study.spec
    rows = [
        ["space", spec.space],
        ["deployment", f"{spec.deployment.template}, {spec.deployment.model}, {spec.deployment.devices} devices"],
        ["load", ", ".join(f"{level.name} {level.extent}" for level in spec.workload.levels)],
        ["limits", ", ".join(map(str, spec.sla)) or "none"],
        ["objective", f"{spec.objective.metric}, baseline {figure(overview.baseline_objective)}"],
        ["budget", f"{spec.budget.trials} trials, {spec.budget.wall_time_s:g} s"],
        ["progress", f"{overview.finished_trials} trials finished, {summary(overview)}"],
        ["learned", "; ".join(map(str, overview.learned)) or NOTHING],
        ["finding", study.finding or NOTHING],
    ]
    return table([f"study {study.id}", f"{spec.name}: {study.state}"], rows)
