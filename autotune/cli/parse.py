"""Body of `autotune space parse`, and launch scripts as the baseline of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from autotune.cli.client import Client
from autotune.cli.space_source import space_from
from autotune.cli.tables import print_json, shortened, table
from autotune.documents import Document, file_text, key_path, read_study
from autotune.documents.bash_launches import Launches
from autotune.documents.launch_script import read_launches
from autotune.documents.stack_text import read_stack
from autotune.domain.deployment import facts
from autotune.domain.export import setting_in_words
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_parse import Finding, GivenSetting, ParsedLaunch, baseline_values, parse
from autotune.domain.space import SearchSpace
from autotune.domain.study import StudySpec
from autotune.errors import InvalidRequest, InvalidStudy, Problem

REFUSED = 1
FROM = "from"  # `baseline: {from: FILE}`
_TITLES = {
    "candidate": "the candidate",
    "fixed": "fixed, derived or of the template",
    "unknown": "unknown to the space",
    "unread": "not read by this version",
    "renamed": "renamed in this version",
    "findings": "findings",
}


def parse_launch(url: str, space: str, file: Path, stack: str | None, *, as_json: bool) -> int:
    """What the launch in `file` means to the space, a file or a name of the server's. Gives the exit code."""
    versions = None if stack is None else read_stack(stack, "--stack")
    launches = read_launches(file_text(file), str(file))
    known = space_from(url, space)
    parsed = _with_findings(parse(known, launches.roles, versions), launches)
    if as_json:
        print_json(parsed.model_dump(mode="json"))
    else:
        typer.echo(_in_words(known, launches, parsed))
    return REFUSED if parsed.is_refused else 0


def study_from_launch(client: Client, document: Document, text: str, file: Path) -> StudySpec | None:
    """The study whose baseline is the launch that `baseline: {from: FILE}` names; None where it names none.

    FILE is relative to the study file. What was not read is told on stderr. Raises InvalidStudy when the study
    or the launch cannot be read.
    """
    source = _source(document, file)
    if source is None:
        return None
    spec = read_study(text, str(file), baseline={})
    try:
        launches = read_launches(file_text(source), str(source))
    except InvalidRequest as error:
        line = document.line_of(key_path(f"baseline.{FROM}"))
        cause = [Problem(f"baseline.{FROM}", error.message, line=line, file=str(file)), *error.problems]
        raise InvalidStudy(f"the baseline of {file} can't be read", cause) from error
    space = client.read(SearchSpace, f"/spaces/{quote(spec.space, safe='')}")
    known = facts(spec.deployment, spec.workload)
    parsed = _with_findings(parse(space, launches.roles, spec.stack, known), launches)
    for warning in _warnings(parsed):
        typer.echo(f"autotune: {source}: {warning}", err=True)
    return spec.model_copy(update={"baseline": baseline_values(space, parsed)})


def _source(document: Document, file: Path) -> Path | None:
    baseline = document.data.get("baseline") if isinstance(document.data, dict) else None
    if not isinstance(baseline, dict) or FROM not in baseline:
        return None
    name = baseline[FROM]
    line = document.line_of(("baseline", FROM))
    if not isinstance(name, str) or not name:
        problem = Problem(f"baseline.{FROM}", "must be the path of a launch script", line=line, file=str(file))
        raise InvalidStudy(f"{file} has 1 problem", [problem])
    if len(baseline) > 1:
        text = f"stands beside {', '.join(k for k in baseline if k != FROM)}"
        mend = "give knobs or a file, not both"
        raise InvalidStudy(
            f"{file} has 1 problem", [Problem(f"baseline.{FROM}", text, mend, line=line, file=str(file))]
        )
    return file.parent / name


def _with_findings(parsed: ParsedLaunch, launches: Launches) -> ParsedLaunch:
    return parsed.model_copy(update={"findings": (*launches.findings, *parsed.findings)})


# --- words ----------------------------------------------------------------------------------


def _in_words(space: SearchSpace, launches: Launches, parsed: ParsedLaunch) -> str:
    where = ", ".join(f"{role} (line {line})" for role, line in launches.lines.items())
    several = len(launches.roles) > 1
    blocks = [f"{space.name}: launch of {where}"]
    rows: dict[str, Sequence[Sequence[str]]] = {
        "candidate": [[name, _value(value)] for name, value in parsed.candidate.items()],
        "fixed": [_setting(s, several) for s in parsed.fixed],
        "unknown": [_setting(s, several) for s in parsed.unknown],
        "unread": [_setting(s, several) for s in parsed.unread],
        "renamed": [[r.old, "->", r.new, _value(r.value), r.about] for r in parsed.renamed],
        "findings": [[f.severity, f.rule, f.message] for f in parsed.findings],
    }
    for name, title in _TITLES.items():
        if lines := rows[name]:
            cells = [[f"  {first}", *rest] for first, *rest in lines]
            blocks.append("\n".join([f"{title}:", *table([""] * len(cells[0]), cells).splitlines()[1:]]))
        elif name == "candidate":
            blocks.append(f"{title}: every knob is unset")
    return "\n\n".join(blocks)


def _setting(setting: GivenSetting, several: bool) -> list[str]:
    key = f"{setting.role}: {setting.key}" if several else setting.key
    return [key, _value(setting.value), "; ".join(filter(None, (setting.why, setting.mend)))]


def _value(value: KnobValue) -> str:
    words: Any = value if isinstance(value, str) else setting_in_words(value)
    return shortened(str(words), 60)


def _warnings(parsed: ParsedLaunch) -> list[str]:
    lines = [f"{s.key}={_value(s.value)} is not read by this version: {s.why}" for s in parsed.unread]
    lines += [f"{r.old} is {r.new} in this version" for r in parsed.renamed]
    lines += [f"{s.key}={_value(s.value)} is unknown to the space" for s in parsed.unknown]
    return lines + [_finding(f) for f in parsed.findings if f.severity != "note"]


def _finding(finding: Finding) -> str:
    return f"{finding.rule} ({finding.severity}): {finding.message}"
