"""One failure in full: class, deciding line in its context, numbers, settings, cause and what a study does."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from autotune.domain.failure import Failure, FailureClass, FailureValue, Phase, RetryPolicy
from autotune.domain.value import Value
from workers.failures.classify import Finding, classify
from workers.failures.evidence import LONGEST_LINE, without_prefix
from workers.failures.signatures import catalogue

LINES_AROUND = 3
MOST_SETTINGS = 12


class Place(Value):
    """Where the deciding line stands; `number` counts from 1. `context` holds it and the lines around it."""

    file: str
    number: int
    context: tuple[str, ...]


class Setting(Value):
    """A setting that may be to blame. `asked` is its value at this launch, None where it was not set or not told."""

    name: str
    asked: str | None = None


class FailurePage(Value):
    """What can be told of a failure from its logs."""

    failure_class: FailureClass
    retry: RetryPolicy
    phase: Phase
    signature: str | None
    decisive_line: str | None
    place: Place | None
    values: tuple[FailureValue, ...]
    settings: tuple[Setting, ...]
    means: str
    cause: str
    does: str


def failure_page(
    phase: Phase,
    exit_code: int | None,
    logs: Mapping[str, str],
    engine: str,
    *,
    asked: Mapping[str, str] | None = None,
    oom_kills: int | None = None,
    silence_s: float | None = None,
) -> FailurePage:
    """`logs` maps a file's name to its text, in the order in which they are read; else as `classify`."""
    finding = classify(phase, exit_code, list(logs.values()), engine, oom_kills=oom_kills, silence_s=silence_s)
    place = _place(finding.line, logs)
    about = catalogue().classes[finding.failure_class]
    return FailurePage(
        failure_class=finding.failure_class,
        retry=finding.retry,
        phase=phase,
        signature=finding.signature,
        decisive_line=finding.line,
        place=place,
        values=finding.values,
        settings=_settings(finding, asked, place.context if place else ()),
        means=about.means,
        cause=about.cause,
        does=about.does,
    )


def involved(failure: Failure, asked: Mapping[str, str]) -> tuple[Setting, ...]:
    """The settings of a launch that may be to blame for its failure; `asked` are those that it was given."""
    often = catalogue().settings(failure.failure_class, failure.signature, failure.values)
    named = {value.setting for value in failure.values}
    return _of_these(often, named, asked, failure.decisive_line or "")


def _place(line: str | None, logs: Mapping[str, str]) -> Place | None:
    if line is None:
        return None
    for file, text in logs.items():
        lines = text.splitlines()
        for index, candidate in enumerate(lines):
            if without_prefix(candidate[:LONGEST_LINE]).startswith(line):
                around = lines[max(index - LINES_AROUND, 0) : index + LINES_AROUND + 1]
                return Place(file=file, number=index + 1, context=tuple(one[:LONGEST_LINE] for one in around))
    return None


def _settings(finding: Finding, asked: Mapping[str, str] | None, context: Sequence[str]) -> tuple[Setting, ...]:
    """What the message names and what is often to blame; of these only what was asked for, where that is known."""
    if asked is None:
        return tuple(Setting(name=name) for name in finding.settings)[:MOST_SETTINGS]
    return _of_these(finding.settings, {v.setting for v in finding.values}, asked, "\n".join(context))


def _of_these(
    often: Sequence[str], told: Collection[str | None], asked: Mapping[str, str], text: str
) -> tuple[Setting, ...]:
    names = [name for name in often if name in asked or name in told]
    names += [name for name in asked if _is_named(name, text)]
    return tuple(Setting(name=name, asked=asked.get(name)) for name in dict.fromkeys(names))[:MOST_SETTINGS]


def _is_named(setting: str, text: str) -> bool:
    """Whether the text speaks of it, with dashes or with underscores."""
    bare = setting.lstrip("-")
    return len(bare) > 3 and (bare in text or bare.replace("-", "_") in text)
