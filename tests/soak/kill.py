"""Kill matrix: SIGKILL of every process of the service and of its trials, at random moments of real trials.

`autotune up` with Ray on a data directory of its own; simulated servers made of several processes. Writes
`out/bench/kill.json`; exit status 1 when anything was lost, left, doubled or misnamed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.running_service import running
from tests.soak.kill_run import KillRun, Target, deck
from tests.soak.kill_study import prepare
from tests.soak.verdict import Kill, Limits

OUT = Path("out/bench/kill.json")
COUNTS = ("lost", "doubled", "processes_left", "wrong_class", "devices_stuck")


def p95(values: Sequence[float]) -> float | None:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else None


def report(kills: Sequence[Kill], trials: int, afterwards: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The figures of a run. A violation that shows at the kill and at the end again is counted twice."""
    per_kill = Counter(count for kill in kills for count in kill.violations)
    return {
        "kills": len(kills),
        "trials": trials,
        **{count: per_kill[count] + len(afterwards.get(count, ())) for count in COUNTS},
        "clean_s_p95": p95([kill.clean_s for kill in kills]),
        "clean_s_max": max((kill.clean_s for kill in kills), default=None),
        "end_s_p95": p95([kill.end_s for kill in kills if kill.end_s is not None]),
        "devices_s_p95": p95([kill.devices_s for kill in kills if kill.devices_s is not None]),
        "by_victim": dict(Counter(str(kill.victim) for kill in kills)),
        "by_moment": dict(Counter(str(kill.moment) for kill in kills)),
        "ends": {
            f"{victim}: {end}": n
            for (victim, end), n in sorted(Counter((str(kill.victim), str(kill.end)) for kill in kills).items())
        },
        "violations": [kill.told() for kill in kills if kill.violations]
        + [{"afterwards": count, "what": what} for count, found in afterwards.items() for what in found],
    }


def soak(
    folder: Path, targets: Sequence[Target], rng: random.Random, limits: Limits, out: Path | None
) -> dict[str, Any]:
    """Run all kills in a service of its own; `out` is written after every one."""
    data = folder / "data"
    prepare(data)
    with running(data, executor="ray", slots=1) as service:

        def say(kill: Kill) -> None:
            wrong = f"  VIOLATED {kill.violations}" if kill.violations else ""
            sys.stderr.write(
                f"{kill.number:4} {kill.victim:13} {kill.moment:9} {kill.end or '-':14} clean {kill.clean_s:5.2f} s"
                f"  end {kill.end_s or 0:5.1f} s  devices {kill.devices_s or 0:5.1f} s{wrong}\n"
            )
            if out is not None:
                write(out, report(run.kills, run.trials, {}))

        run = KillRun(service, targets, rng, limits, say)
        with asked_to_stop(run.stop_soon):
            run.run()
        return report(run.kills, run.trials, run.finish())


@contextmanager
def asked_to_stop(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM ends the kills and keeps their figures."""
    before = signal.signal(signal.SIGTERM, lambda *_: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def write(path: Path, figures: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=210, help="42 are every victim in every moment once")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--keep", type=Path, help="folder for the data, which is kept; default: a temporary one")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    targets = deck(args.kills, rng)
    with tempfile.TemporaryDirectory(prefix="autotune-kill-") as temporary:
        figures = {"seed": args.seed, **soak(args.keep or Path(temporary), targets, rng, Limits(), args.out)}
    write(args.out, figures)
    sys.stdout.write(json.dumps({k: v for k, v in figures.items() if k != "violations"}, indent=2) + "\n")
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
