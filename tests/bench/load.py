"""How exact load generators are: ours, plain clients and peers against a server that knows what it really sent.

For each number of streams and time per token: the error of TPOT on the mean and on the worst request, what the client
adds to TTFT, and how many chunks a second one core could take. Then ours again while other work takes the machine:
there a measurement must be right or say that it can't be trusted. Writes `out/bench/load.json`; ends with 1 where ours
misses a goal. `--quick`: fewer cells. Peers run where `make bench-peers` has installed them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from autotune.domain.measurement import RequestSample
from autotune.domain.workload import LoadLevel, Workload
from tests.bench.load_peers import PEERS, PYTHON, Row
from tests.bench.truth import TruthServer, built, serving
from workers.conclusions import measured
from workers.load.process import LoadProcess
from workers.load.spec import LoadSpec

OUT = Path("out/bench/load.json")
STREAMS, INTERVALS_MS = (1, 8, 64, 256), (5.0, 10.0, 20.0)
TPOT_WORST_PCT, TTFT_ADDED_MS = 0.1, 0.5
OVERSUBSCRIBED_PCT = 0.2
BUSY_PER_CORE = 6


class Shape(NamedTuple):
    """One cell's load: two waves of requests, one where that is enough."""

    streams: int
    requests: int
    tokens: int


class Taken(NamedTuple):
    """What one client measured. `trust` is ours alone."""

    rows: Sequence[Row]
    cpu_s: float | None
    trust: str | None = None
    reasons: tuple[str, ...] = ()


Client = Callable[[TruthServer, Shape, Path], Taken]


def shape_of(streams: int) -> Shape:
    return Shape(streams, max(streams if streams >= 256 else 2 * streams, 8), 64 if streams >= 256 else 128)


def ours(server: TruthServer, shape: Shape, folder: Path) -> Taken:
    """The product's own load process."""
    level = LoadLevel(concurrency=shape.streams, requests=shape.requests)
    workload = Workload(prompt_tokens=64, output_tokens=shape.tokens, levels=(level,), warmup_requests=4)
    spec = LoadSpec(base_url=server.url, model="truth", workload=workload, seed=1)
    process = LoadProcess.start(spec, folder, {"PATH": os.environ["PATH"]})
    while not process.ended:
        time.sleep(0.05)
        process.poll()
    result = process.result()
    samples = result.levels[level.name]
    measurement = measured(workload, result.levels, {}, result.server)
    rows = [_row(sample) for sample in sorted(samples, key=lambda s: s.t_send_s)]
    return Taken(rows, result.host.cpu_s, str(measurement.trust), measurement.trust_reasons)


def _row(sample: RequestSample) -> Row:
    tpot = sample.tpot_ms if sample.decode_tpot_ms is None else sample.decode_tpot_ms
    return Row(ttft_ms=None if sample.coalesced else sample.ttft_ms, tpot_ms=tpot)


def plain(kind: str, python: str) -> Client:
    """A client of `load_client.py`."""

    def take(server: TruthServer, shape: Shape, _: Path) -> Taken:
        script = str(Path(__file__).with_name("load_client.py"))
        argv = [python, script, kind, server.url, *map(str, shape)]
        done = subprocess.run(argv, capture_output=True, check=True)
        told = json.loads(done.stdout)
        rows = [
            Row((r["first"] - r["sent"]) / 1e6, (r["last"] - r["first"]) / (r["tokens"] - 1) / 1e6)
            for r in sorted(told["rows"], key=lambda row: row["sent"])
        ]
        return Taken(rows, told["cpu_s"])

    return take


def clients() -> dict[str, Client]:
    """By name; those that are not installed are left out, with a word."""
    found: dict[str, Client] = {"autotune": ours, "httpx": plain("httpx", sys.executable)}
    if PYTHON.exists():
        found["aiohttp"] = plain("aiohttp", str(PYTHON))
    for name, peer in PEERS.items():
        if peer.program.exists():
            found[name] = lambda server, shape, folder, peer=peer: Taken(  # type: ignore[misc]
                peer.take(server.url, shape.streams, shape.requests, shape.tokens, folder), None
            )
        else:
            sys.stderr.write(f"{name} is not installed and left out: make setup-peers installs it\n")
    return found


def cell(name: str, client: Client, server: TruthServer, shape: Shape, interval_ms: float) -> dict[str, Any]:
    """One client at one load, compared request by request in the order of sending."""
    server.truths(shape.tokens)
    with tempfile.TemporaryDirectory(prefix="autotune-load-") as folder:
        taken = client(server, shape, Path(folder))
    truths = server.truths(shape.tokens)[-len(taken.rows) :]
    errors = [
        100 * (row.tpot_ms / truth.tpot_ms - 1)
        for row, truth in zip(taken.rows, truths, strict=True)
        if row.tpot_ms is not None
    ]
    ttft = [row.ttft_ms for row in taken.rows if row.ttft_ms is not None]
    chunks = shape.tokens * shape.requests
    added = sum(ttft) / len(ttft) - sum(truth.ttft_ms for truth in truths) / len(truths) if ttft else None
    return {
        "client": name,
        "streams": shape.streams,
        "interval_ms": interval_ms,
        "requests": len(taken.rows),
        "tpot_error_mean_pct": sum(errors) / len(errors) if errors else None,
        "tpot_error_worst_pct": max(map(abs, errors)) if errors else None,
        "tpot_undefined": len(taken.rows) - len(errors),
        "ttft_added_mean_ms": added,
        "chunks_per_s_per_core": chunks / taken.cpu_s if taken.cpu_s else None,
        "cpu_us_per_chunk": 1e6 * taken.cpu_s / chunks if taken.cpu_s else None,
        "server_latest_ms": max(truth.latest for truth in truths) / 1e6,
        "server_real_time": server.real_time,
        "trust": taken.trust,
        "trust_reasons": taken.reasons,
    }


@contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    """So many processes that do nothing but work."""
    script = "while True: sum(range(1000))"
    others = [subprocess.Popen([sys.executable, "-S", "-c", script]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
        for other in others:
            other.wait()


def misses(row: dict[str, Any]) -> list[str]:
    """What a row of ours falls short of."""
    where = f"{row['streams']} streams, {row['interval_ms']:g} ms"
    worst = row["tpot_error_worst_pct"]
    if row["oversubscribed"]:
        trusted = row["trust"] != "invalid"
        wrong = trusted and worst is not None and worst > OVERSUBSCRIBED_PCT and not row["trust_reasons"]
        return [f"{where}, oversubscribed: TPOT {worst:.3f} % off and not a word of it"] if wrong else []
    found = []
    if worst is None or worst > TPOT_WORST_PCT or row["tpot_undefined"]:
        found.append(f"{where}: worst TPOT error {worst} % ({row['tpot_undefined']} undefined)")
    if row["ttft_added_mean_ms"] is None or row["ttft_added_mean_ms"] > TTFT_ADDED_MS:
        found.append(f"{where}: {row['ttft_added_mean_ms']} ms added to TTFT")
    return found


def line(row: dict[str, Any]) -> str:
    def number(key: str, form: str) -> str:
        return "-" if row[key] is None else format(row[key], form)

    busy = " busy" if row["oversubscribed"] else ""
    return (
        f"{row['client'] + busy:15} {row['streams']:4} {row['interval_ms']:5g} "
        f"{number('tpot_error_mean_pct', '+.3f'):>9} {number('tpot_error_worst_pct', '.3f'):>8} "
        f"{number('ttft_added_mean_ms', '+.2f'):>9} {number('chunks_per_s_per_core', '.0f'):>8} "
        f"{row['server_latest_ms']:8.3f}  {row['trust'] or ''} {'; '.join(row['trust_reasons'])[:90]}\n"
    )


def measure(quick: bool) -> list[dict[str, Any]]:
    streams = (8, 64) if quick else STREAMS
    intervals = (10.0,) if quick else INTERVALS_MS
    rows: list[dict[str, Any]] = []
    sys.stdout.write("client          str.    ms  TPOT mean%  worst%   TTFT+ms  ch/s/core  server+ms  trust\n")
    with built() as program:
        for busy in (False, True):
            chosen = {"autotune": ours} if busy else clients()
            with busy_machine(BUSY_PER_CORE * (os.cpu_count() or 1) if busy else 0):
                for interval in intervals:
                    with serving(program, interval) as server:
                        for count in streams:
                            for name, client in chosen.items():
                                row = cell(name, client, server, shape_of(count), interval)
                                rows.append({**row, "oversubscribed": busy})
                                sys.stdout.write(line(rows[-1]))
                                sys.stdout.flush()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rows = measure(quick)
    missed = [text for row in rows if row["client"] == "autotune" for text in misses(row)]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"quick": quick, "cores": os.cpu_count(), "cells": rows, "missed": missed}, indent=2))
    sys.stdout.write("".join(f"MISSED {text}\n" for text in missed) + f"written to {OUT}\n")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
