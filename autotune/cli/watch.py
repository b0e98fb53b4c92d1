"""Follow a study to its end."""

from __future__ import annotations

import time
from collections.abc import Callable

import typer

from autotune.cli.answers import Overview
from autotune.cli.client import Client
from autotune.cli.progress import Progress, progress_on_stderr
from autotune.cli.result import print_result
from autotune.domain.study import StudyState
from autotune.errors import Unavailable

POLL_S = 1.0
PATIENCE_S = 60.0  # a server that is started again takes some seconds
DONE = 0
NOT_DONE = 1
INTERRUPTED = 130


def watch_to_end(url: str, study_id: int, *, as_json: bool) -> int:
    """Show progress until the study is finished, then its result. Gives the exit code."""
    with Client(url) as client:
        try:
            with progress_on_stderr() as progress:
                overview = follow(client, study_id, progress)
        except KeyboardInterrupt:
            typer.echo(f"the study goes on; `autotune watch {study_id}` follows it again", err=True)
            return INTERRUPTED
        print_result(client, overview, as_json=as_json)
    return exit_code(overview)


def exit_code(overview: Overview) -> int:
    """0 for a study that is done, whether or not a winner is proven."""
    return DONE if overview.study.state is StudyState.DONE else NOT_DONE


def follow(
    client: Client,
    study_id: int,
    progress: Progress,
    *,
    poll_s: float = POLL_S,
    patience_s: float = PATIENCE_S,
    check: Callable[[], None] = lambda: None,
) -> Overview:
    """Wait until the study is finished. A server that was there once may be away for `patience_s`.

    `check` is called before every look and may raise to end the wait.
    """
    heard: float | None = None
    silent = False
    while True:
        check()
        try:
            overview = client.read(Overview, f"/studies/{study_id}")
        except Unavailable as error:
            if heard is None or time.monotonic() - heard > patience_s:
                raise
            if not silent:
                progress.note(f"{error.message}; trying again for {patience_s:.0f} s")
            silent = True
        else:
            heard, silent = time.monotonic(), False
            progress.show(overview)
            if overview.study.state.is_finished:
                return overview
        time.sleep(poll_s)
