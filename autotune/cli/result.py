"""The result of a study as a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import typer

from autotune.cli.answers import Overview, TrialLine
from autotune.cli.client import Client
from autotune.cli.tables import NOTHING, figure, print_json, table
from autotune.domain.export import claim_in_words, gain_in_words, proof_of_best, setting_in_words, to_json
from autotune.domain.objective import NOT_COMPARABLE
from autotune.domain.recipe import Evidence, Interval, Recipe
from autotune.domain.study import StudyState


def print_result(client: Client, overview: Overview, *, as_json: bool) -> None:
    """On stdout: finding, baseline against best with gain and interval, trials by outcome."""
    study = overview.study
    recipe = client.read(Recipe, f"/studies/{study.id}/recipe") if study.state is StudyState.DONE else None
    outcomes = outcomes_of(client, study.id)
    if as_json:
        print_json(result_as_json(overview, recipe, outcomes))
    else:
        typer.echo(result_in_words(overview, recipe, outcomes))


def outcomes_of(client: Client, study_id: int) -> dict[str, int]:
    """How many trials ended how: `measured`, `outside the limits`, `not comparable`, `failed: CLASS`, ..."""
    lines = (client.understood(TrialLine, item) for item in client.pages(f"/studies/{study_id}/trials"))
    return dict(sorted(Counter(map(_outcome, lines)).items()))


def _outcome(trial: TrialLine) -> str:
    if trial.failure is not None:
        return f"failed: {trial.failure.failure_class}"
    if trial.verdict is not None and not trial.verdict.feasible:
        return "outside the limits" if trial.verdict.comparable else NOT_COMPARABLE
    return trial.state


def result_as_json(overview: Overview, recipe: Recipe | None, outcomes: dict[str, int]) -> dict[str, Any]:
    """The same for programs; `recipe` has the form of an export."""
    return {
        "study": overview.study.model_dump(mode="json"),
        "counts": overview.counts,
        "outcomes": outcomes,
        "recipe": None if recipe is None else json.loads(to_json(recipe)),
    }


def result_in_words(overview: Overview, recipe: Recipe | None, outcomes: dict[str, int]) -> str:
    """Several lines, no line break at the end."""
    study = overview.study
    lines = [f"study {study.id} {study.spec.name}: {study.state}"]
    if recipe is None:
        lines.append(study.finding or "no finding")
    else:
        lines.append(claim_in_words(recipe))
        lines += ["SIMULATED: no figures of a real device"] if recipe.simulated else []
        lines += ["", *_figures(recipe), *_changes(recipe), *_contenders(recipe)]
    parts = [f"{count} {outcome}" for outcome, count in outcomes.items()]
    lines += ["", f"{sum(outcomes.values())} trials: {', '.join(parts) or 'none'}"]
    return "\n".join(lines)


def _figures(recipe: Recipe) -> list[str]:
    proof = proof_of_best(recipe)
    head = ["", "baseline", "best", "confirmed gain"]
    # A gain is one in the objective's own metric: it stands in that metric's rows and in no other.
    units = {"tpot_ms": ("TPOT", "ms"), "ttft_ms": ("TTFT", "ms"), "output_tok_s": ("output", "tok/s")}
    own = str(recipe.objective.metric)
    gains = proof.gain_pct_by_level if proof else {}
    rows: list[list[str]] = []
    for metric in sorted({own, "tpot_ms", "ttft_ms"}, key=lambda name: (name != own, name == "ttft_ms")):
        word, unit = units[metric]
        for level in (level.name for level in recipe.workload.levels):
            gain = gains.get(level) if metric == own else None
            shown = gain_in_words(gain) if gain else (NOTHING if metric == own else "")
            rows.append([f"{word} {level}", *_pair(recipe, level, metric, unit), shown])
    if proof and proof.gain_pct:
        objective = [_mean(recipe.baseline.objective), _mean(recipe.best.objective), gain_in_words(proof.gain_pct)]
        rows.insert(0, [f"objective ({recipe.objective.metric})", *objective])
    trials = [_trials(recipe.baseline), _trials(recipe.best)]
    rows.append(["trials", *trials, ""])
    return table(head, rows, right=(1, 2)).splitlines()


def _pair(recipe: Recipe, level: str, metric: str, unit: str) -> list[str]:
    return [_mean(getattr(evidence, metric).get(level), unit) for evidence in (recipe.baseline, recipe.best)]


def _mean(interval: Interval | None, unit: str = "") -> str:
    return figure(None if interval is None else interval.mean, unit)


def _trials(evidence: Evidence) -> str:
    return ", ".join(map(str, evidence.trials)) or NOTHING


def _changes(recipe: Recipe) -> Iterable[str]:
    if not recipe.changes:
        return []
    rows = [[f"  {k}", f"{setting_in_words(a)} -> {setting_in_words(b)}"] for k, (a, b) in recipe.changes.items()]
    return ["", "changes:", *table(["  knob", "baseline -> best"], rows).splitlines()[1:]]


def _contenders(recipe: Recipe) -> Iterable[str]:
    if recipe.confirmed or not recipe.contenders:
        return []
    rows = [
        [f"  {c.evidence.label}", _trials(c.evidence), gain_in_words(c.gain_pct) if c.gain_pct else NOTHING, c.reason]
        for c in recipe.contenders
    ]
    return ["", "came nearest:", *table(["  label", "trials", "gain", "why it is not proven"], rows).splitlines()]
