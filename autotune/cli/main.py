"""The `autotune` command: what can be asked. The bodies are imported when they run, so that help stays quick.

Exit codes: 0 done; 1 the study failed or was cancelled, the server refuses or does not answer; 2 wrong use or
an invalid file. Results go to stdout, progress and complaints to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.choices import Api, Executor, Format, PeerClient, ResultFormat, SpaceForm
from autotune.errors import AutotuneError

app = typer.Typer(
    name="autotune",
    help="Searches launch settings of LLM inference servers, measures them, and proves the winner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help comes in half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)
study_app = typer.Typer(help="Create, list, show, cancel and resume studies.", no_args_is_help=True)
space_app = typer.Typer(help="Look at search spaces, check and make them.", no_args_is_help=True)
app.add_typer(study_app, name="study")
hosts_app = typer.Typer(help="List hosts and their devices; lift a quarantine.", invoke_without_command=True)
app.add_typer(space_app, name="space")
app.add_typer(hosts_app, name="hosts")


Url = Annotated[str, typer.Option("--url", envvar="AUTOTUNE_URL", help="Where the server answers.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
StudyId = Annotated[int, typer.Argument(metavar="ID", min=0, help="The study's number.")]
StudyFile = Annotated[Path, typer.Argument(metavar="FILE", help="A study file (YAML).")]
SpaceName = Annotated[
    str, typer.Argument(metavar="SPACE", help="A space's name on the server, or the path of a file here.")
]
DEFAULT_URL = "http://127.0.0.1:8765"


@app.command()
def up(
    data: Annotated[Path | None, typer.Option(help="Data directory [default: $AUTOTUNE_DATA or the user's]")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8765,
    executor: Annotated[Executor, typer.Option(help="What runs trials.")] = Executor.RAY,
    slots: Annotated[int, typer.Option(min=1, help="Trials at a time on this host.")] = 1,
) -> None:
    """Start the server on this machine; Ctrl-C ends it."""
    from autotune.cli.local_service import become_server

    become_server(data, host, port, executor, slots)


@app.command()
def classify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Logs of one launch, one a process.")],
    engine: Annotated[str, typer.Option(help="The engine that wrote them, such as vllm-ascend.")],
    phase: Annotated[str, typer.Option(help="How far it came: launch, ready, warm_up or load.")],
    exit_code: Annotated[
        int | None, typer.Option(help="Its exit code, negative for a signal; left out: it lives.")
    ] = None,
    asked: Annotated[
        Path | None, typer.Option(help="Launch plan (JSON) or script: names the settings involved.")
    ] = None,
    oom_kills: Annotated[int | None, typer.Option(help="By how much the kernel's oom_kill counter rose.")] = None,
    silent_for: Annotated[
        float | None, typer.Option(help="Seconds without a new line, where that is too long.")
    ] = None,
) -> None:
    """Say why a server failed, from its logs, as JSON. Needs no server of ours."""
    from autotune.cli.program import become

    options = {"engine": engine, "phase": phase, "exit_code": exit_code, "asked": asked}
    become("workers.failures", {**options, "oom_kills": oom_kills, "silent_for": silent_for}, operands=files)


@study_app.command("create")
def study_create(
    file: StudyFile,
    watch: Annotated[bool, typer.Option("--watch", help="Wait for the result.")] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Check a study file and start the study."""
    from autotune.cli.studies import create

    raise typer.Exit(create(url, file, watch=watch, as_json=json))


@study_app.command("list")
def study_list(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the studies, newest first."""
    from autotune.cli.studies import listing

    listing(url, as_json=json)


@study_app.command("show")
def study_show(study: StudyId, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Show how far a study is, or its result."""
    from autotune.cli.studies import show

    show(url, study, as_json=json)


@study_app.command("cancel")
def study_cancel(study: StudyId, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """End a running study."""
    from autotune.cli.studies import change

    change(url, study, "cancel", as_json=json)


@study_app.command("resume")
def study_resume(study: StudyId, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Go on with a cancelled or failed study."""
    from autotune.cli.studies import change

    change(url, study, "resume", as_json=json)


@app.command()
def watch(study: StudyId, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Follow a study to its end and print the result. Exits with 1 unless the study is done."""
    from autotune.cli.watch import watch_to_end

    raise typer.Exit(watch_to_end(url, study, as_json=json))


@app.command()
def trials(
    study: StudyId,
    state: Annotated[str | None, typer.Option(help="Only trials in this state, e.g. failed.")] = None,
    phase: Annotated[str | None, typer.Option(help="Only trials of this phase, e.g. search.")] = None,
    failure: Annotated[str | None, typer.Option(help="Only failures of this class, e.g. out_of_memory.")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """List the trials of a study."""
    from autotune.cli.trials import listing

    listing(url, study, state=state, phase=phase, failure_class=failure, as_json=json)


@app.command()
def trial(
    study: StudyId,
    number: Annotated[int, typer.Argument(min=0, help="The trial's number.")],
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show one trial: settings, command, figures, failure with log."""
    from autotune.cli.trials import show

    show(url, study, number, as_json=json)


@space_app.command("list")
def space_list(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the search spaces of the server."""
    from autotune.cli.spaces import listing

    listing(url, as_json=json)


@space_app.command("show")
def space_show(
    space: SpaceName,
    stack: Annotated[
        str | None, typer.Option(help="Only what exists there, e.g. engine=0.23,cann=9.1,chip=910C, and its size.")
    ] = None,
    include: Annotated[list[str] | None, typer.Option(help="Search this knob of tier 3 too; tier3 for all.")] = None,
    study: Annotated[Path | None, typer.Option(help="A study file whose facts the rules are judged by.")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Show the knobs of a search space: values, baseline, where they land."""
    from autotune.cli.spaces import show

    show(url, space, stack, include or (), study, as_json=json)


@space_app.command("explain")
def space_explain(
    space: SpaceName,
    knob: Annotated[str, typer.Argument(help="The knob's name.")],
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Tell all about one knob: what it does, values, evidence, rules, source."""
    from autotune.cli.space_explain import explain

    explain(url, space, knob, as_json=json)


@space_app.command("lint")
def space_lint(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A space file (YAML).")], json: Json = False
) -> None:
    """Check a space file and report all problems at once. Exits with 1 when there are any."""
    from autotune.cli.space_lint import lint

    raise typer.Exit(lint(file, as_json=json))


@space_app.command("import")
def space_import(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Another tool's file.")],
    form: Annotated[SpaceForm, typer.Option("--format", help="Which tool's.")],
    name: Annotated[str | None, typer.Option(help="Name of the space [default: the file's]")] = None,
    engine: Annotated[str, typer.Option(help="The engine that the space is for.")] = "vllm",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write there, not to stdout.")] = None,
    json: Json = False,
) -> None:
    """Turn what another tool varies into a space file."""
    from autotune.cli.space_import import import_file

    import_file(file, form, name, engine, output, as_json=json)


@space_app.command("schema")
def space_schema(json: Json = False) -> None:
    """Print the JSON Schema of space files, for editors."""
    from autotune.cli.space_schema import print_schema

    print_schema(as_json=json)


@space_app.command("parse")
def space_parse(
    space: Annotated[str, typer.Argument(metavar="SPACE", help="A space's name, or the path of its file.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A launch script (bash), or YAML of env and argv.")],
    stack: Annotated[str | None, typer.Option(help="Versions, e.g. engine=0.23,cann=9.1,chip=910C.")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Say which candidate a launch script means, and what in it is not read."""
    from autotune.cli.parse import parse_launch

    raise typer.Exit(parse_launch(url, space, file, stack, as_json=json))


@app.command()
def export(
    study: StudyId,
    form: Annotated[Format, typer.Option("--format", help="Launch script, variables alone, or all evidence.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write there, not to stdout.")] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="The baseline instead of the best.")] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Write the best configuration of a study, with its evidence."""
    from autotune.cli.exports import export_recipe

    export_recipe(url, study, form, output, baseline=baseline, as_json=json)


@hosts_app.callback()
def hosts(context: typer.Context, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List hosts, their devices, and who has them; or lift a quarantine."""
    if context.invoked_subcommand is None:
        from autotune.cli.hosts import listing

        listing(url, as_json=json)


@hosts_app.command("release")
def hosts_release(
    host: Annotated[str, typer.Argument(metavar="HOST", help="The host's name.")],
    device: Annotated[
        int | None, typer.Argument(metavar="[DEVICE]", min=0, help="The device's number; without it, all of the host.")
    ] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Lift the quarantine of a device, or of all devices of a host: they may get trials again."""
    from autotune.cli.hosts import release

    release(url, host, device, as_json=json)


@app.command()
def recompute(
    place: Annotated[str, typer.Argument(metavar="FOLDER|STUDY/TRIAL", help="An attempt's folder, or a trial.")],
    data: Annotated[Path | None, typer.Option(help="Data directory [default: $AUTOTUNE_DATA or the user's]")] = None,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Compute a trial's figures again from its raw streams, and say what changed."""
    from autotune.cli.recompute import become_recomputer

    become_recomputer(url, place, data, as_json=json)


@app.command()
def measure(
    url: Annotated[str, typer.Option("--url", help="The endpoint's root, such as http://127.0.0.1:8000.")],
    model: Annotated[str | None, typer.Option(help="The model's name [default: the only one that is served]")] = None,
    preset: Annotated[str | None, typer.Option(help="report-a-1k512, gsp-128k1k, smoke or knee.")] = None,
    workload: Annotated[Path | None, typer.Option(metavar="FILE", help="A workload (YAML), or a study file.")] = None,
    api: Annotated[Api, typer.Option(help="Token ids of exact length, or chat messages.")] = Api.COMPLETIONS,
    seed: Annotated[int | None, typer.Option(help="Of the prompts [default: another one each time]")] = None,
    repeats: Annotated[int, typer.Option(min=1, max=99, help="The middle one of so many stands for all.")] = 1,
    slo: Annotated[list[str] | None, typer.Option(help="A limit, such as 'ttft_p99_ms <= 400 at c8'; again.")] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="Variable with the server's key.")] = None,
    ca_file: Annotated[str | None, typer.Option(metavar="FILE", help="Authorities for https (PEM).")] = None,
    keep_cache: Annotated[bool, typer.Option("--keep-cache", help="Never empty the server's prefix cache.")] = False,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep requests and raw streams there.")] = None,
    form: Annotated[ResultFormat, typer.Option("--format", help="Whose form --out has.")] = ResultFormat.JSON,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the result there too.")] = None,
    json: Json = False,
) -> None:
    """Measure any running endpoint. Exits with 1 when the figures can't be trusted."""
    from autotune.cli.program import become

    more = {"ca_file": ca_file, "keep_cache": keep_cache, "keep": keep, "format": form, "out": out, "json": json}
    asked = {"url": url, "model": model, "preset": preset, "workload": workload, "api": api, "seed": seed}
    become("workers.measure", {**asked, "repeats": repeats, "api_key_env": api_key_env, **more}, {"slo": slo or ()})


@app.command()
def parity(
    url: Annotated[str, typer.Option("--url", help="The endpoint's root, such as http://127.0.0.1:8000.")],
    client: Annotated[PeerClient, typer.Option(help="Whose load generator to run beside ours.")] = PeerClient.EVALSCOPE,
    python: Annotated[Path | None, typer.Option(metavar="PATH", help="Of the environment that has it.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name [default: the only one that is served]")] = None,
    preset: Annotated[str | None, typer.Option(help="A preset without a shared prefix [default: smoke]")] = None,
    workload: Annotated[Path | None, typer.Option(metavar="FILE", help="A workload (YAML), or a study file.")] = None,
    api: Annotated[Api, typer.Option(help="Prompts as text, or chat messages.")] = Api.COMPLETIONS,
    seed: Annotated[int | None, typer.Option(help="Of the prompts [default: another one each time]")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="What vLLM's client counts by: a folder or a name.")] = None,
    api_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="Variable with the server's key.")] = None,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep the other client's files there.")] = None,
    json: Json = False,
) -> None:
    """Run another load generator beside ours, and explain the differences by its definitions. Installs nothing."""
    from autotune.cli.program import become

    asked = {"url": url, "model": model, "preset": preset, "workload": workload, "api": api, "seed": seed}
    more = {"tokenizer": tokenizer, "api_key_env": api_key_env, "keep": keep, "json": json}
    become("workers.parity", {**asked, "client": client, "python": python, **more})


@app.command()
def demo(
    file: StudyFile,
    out: Annotated[Path, typer.Option(help="Folder for results and data.")],
    executor: Annotated[Executor, typer.Option(help="What runs trials.")] = Executor.RAY,
    json: Json = False,
) -> None:
    """Run one study to its end, with a server of its own."""
    from autotune.cli.demo import run_demo

    raise typer.Exit(run_demo(file, out, executor, as_json=json))


@app.command()
def version(json: Json = False) -> None:
    """Print the version."""
    from importlib.metadata import version as installed
    from json import dumps

    number = installed("ascend-autotune")
    typer.echo(dumps({"version": number}) if json else f"autotune {number}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; never returns normally (SystemExit carries the exit code)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=words, prog_name="autotune")
    except AutotuneError as error:
        from autotune.cli.complaint import complain

        raise SystemExit(complain(error, as_json="--json" in words)) from error


if __name__ == "__main__":
    main()
