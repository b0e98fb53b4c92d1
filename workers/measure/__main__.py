"""`python -m workers.measure`: the body of `autotune measure`.

Ends with 0 when it has measured, whether or not limits hold; with 1 when the measurement is invalid, or the server
refuses or can't be reached; with 2 for wrong use; with 130 when it was interrupted. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.domain.objective import Limit
from autotune.domain.presets import PRESETS
from autotune.errors import AutotuneError, InvalidRequest
from workers.load.process import LoadFailed
from workers.load.refusal import LoadRefused
from workers.load.result_files import ResultForm, write_results
from workers.load.spec import LoadResult, LoadSpec
from workers.measure.asked import AskedLoad, asked_load, limits, place_for, root_of
from workers.measure.knee import FEWEST_REQUESTS, LEAST_PER_S, Step, find_knee
from workers.measure.launch import run_load
from workers.measure.measured import SEEDS_APART, Taken, take
from workers.measure.probe import asking, probe, served_model
from workers.measure.progress import Progress
from workers.measure.table import figure, knee_words, words_of

MEASURED, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
MOST_REPEATS = 99
SEED_BELOW = 2**31
STEPS_APART = 1_009  # seeds of the steps of a knee: between those of its repeats


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code(measure, parser().parse_args(arguments), "interrupted: nothing was measured")


def exit_code(
    body: Callable[[argparse.Namespace, Progress], int], given: argparse.Namespace, when_interrupted: str
) -> int:
    """What a command ends with, whatever its body raises; the reason is told."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    progress = Progress()
    try:
        return body(given, progress)
    except KeyboardInterrupt:
        progress.say(when_interrupted)
        return INTERRUPTED
    except (AutotuneError, LoadRefused) as error:
        return complain(error, as_json=given.json)
    except OSError as error:
        return complain(AutotuneError(str(error)), as_json=given.json)


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(prog="autotune measure", description="Measure a running endpoint.")
    words.add_argument("--url", required=True)
    words.add_argument("--model")
    words.add_argument("--preset", help=", ".join(PRESETS))
    words.add_argument("--workload", type=Path)
    words.add_argument("--api", choices=("completions", "chat"), default="completions")
    words.add_argument("--seed", type=int)
    words.add_argument("--repeats", type=int, default=1)
    words.add_argument("--slo", action="append", default=[])
    words.add_argument("--api-key-env")
    words.add_argument("--ca-file")
    words.add_argument("--keep-cache", action="store_true")
    words.add_argument("--keep", type=Path)
    words.add_argument("--format", type=ResultForm, choices=list(ResultForm), default=ResultForm.JSON)
    words.add_argument("--out", type=Path)
    words.add_argument("--json", action="store_true")
    return words


def measure(given: argparse.Namespace, progress: Progress) -> int:
    """Raises AutotuneError, LoadRefused, OSError, and KeyboardInterrupt with everything ended."""
    load = asked_load(given.preset, given.workload, keep_cache=given.keep_cache, keep_streams=given.keep is not None)
    slo = limits(given.slo, load.workload)
    check(given)
    spec = asked_spec(given, load, progress)
    with contextlib.ExitStack() as stack:
        folder = given.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="autotune-measure-")))
        taken, more, words = taken_in(folder, load, spec, given.repeats, slo, progress)
    answer = {**taken.measured.model_dump(mode="json"), **more}
    if given.out is not None:
        for path in written(given.format, taken, answer, given.out):
            progress.say(f"written: {path}")
    sys.stdout.write(f"{json.dumps(answer, indent=2) if given.json else words}\n")
    held = more.get("knee", {}).get("rate_per_s", 0.0) is not None
    return MEASURED if taken.measured.valid and held else FAILED


def check(given: argparse.Namespace) -> None:
    """What argparse lets pass. Raises InvalidRequest."""
    if not 1 <= given.repeats <= MOST_REPEATS:
        raise InvalidRequest(f"--repeats: {given.repeats} is not from 1 to {MOST_REPEATS}")
    if given.out is None and given.format is not ResultForm.JSON:
        raise InvalidRequest(f"--format {given.format} needs --out: the form is that of a file")
    place_for(given.out, folder=given.format is ResultForm.EVALSCOPE)
    place_for(given.keep, folder=True)


def asked_spec(given: argparse.Namespace, load: AskedLoad, progress: Progress) -> LoadSpec:
    """With the server asked whether it can be measured. Raises AutotuneError and LoadRefused."""
    url = root_of(given.url)
    seed = secrets.randbelow(SEED_BELOW) if given.seed is None else given.seed
    with asking(url, given.api_key_env, given.ca_file, load.workload.request_timeout_s) as client:
        progress.say(f"asking {url}")
        try:
            spec = LoadSpec(
                base_url=url,
                model=served_model(client, given.model),
                workload=load.workload,
                seed=seed,
                study_seed=seed,
                api=given.api,
                api_key_env=given.api_key_env,
                ca_file=given.ca_file,
            )
        except ValidationError as error:
            raise InvalidRequest("; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in error.errors())) from error
        probe(client, spec)
    return spec


def taken_in(
    folder: Path, load: AskedLoad, spec: LoadSpec, repeats: int, slo: Sequence[Limit], progress: Progress
) -> tuple[Taken, dict[str, Any], str]:
    """The measurement, what the answer has besides, and words for people."""

    def run(one: LoadSpec, where: Path) -> LoadResult:
        return run_load(one, where, progress)

    if not load.knee:
        taken = take(spec, repeats, slo, folder, run)
        return taken, {}, words_of(taken.measured)
    (level,) = spec.workload.levels
    assert level.rate_per_s is not None

    def take_at(rate: float, number: int) -> Taken:
        there = level.model_copy(update={"rate_per_s": rate})
        changed = spec.workload.model_copy(update={"levels": (there,)})
        seed = spec.seed + number * STEPS_APART + MOST_REPEATS * SEEDS_APART
        one = spec.model_copy(update={"workload": changed, "seed": seed})
        return take(one, repeats, slo, folder / there.name, run)

    def tell(step: Step) -> None:
        held = "holds" if step.holds else step.why
        progress.say(f"{step.rate_per_s:g} requests/s: {held} (TPOT {figure(step.tpot_ms)} ms)")

    least = FEWEST_REQUESTS / level.duration_s if level.duration_s is not None else LEAST_PER_S
    knee, taken = find_knee(level.rate_per_s, least, take_at, tell)
    return taken, {"knee": knee.model_dump(mode="json")}, f"{words_of(taken.measured)}\n\n{knee_words(knee)}"


def written(form: ResultForm, taken: Taken, answer: dict[str, Any], out: Path) -> Sequence[Path]:
    """Raises OSError."""
    if form is not ResultForm.JSON:
        return write_results(form, taken.levels, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    return (out,)


def complain(error: AutotuneError | LoadRefused, *, as_json: bool) -> int:
    """The sentence and every problem on standard error; gives the exit code."""
    wrong_use = isinstance(error, InvalidRequest | LoadRefused) and not isinstance(error, LoadFailed)
    problems = error.problems if isinstance(error, InvalidRequest) else ()
    if as_json:
        told = {"error": type(error).__name__, "detail": str(error), "problems": [asdict(p) for p in problems]}
        sys.stderr.write(json.dumps(told, ensure_ascii=False) + "\n")
    else:
        sys.stderr.write("\n".join([f"autotune: {error}", *(f"  {problem}" for problem in problems)]) + "\n")
    return WRONG_USE if wrong_use else FAILED


if __name__ == "__main__":
    sys.exit(main())
