"""How punctual the simulated server is: 64 streams for a minute, each token against the time the engine had planned.

The server itself writes down when each token was due and when its bytes had been handed to the kernel
(AUTOTUNE_SIM_PACE_FILE); a process of its own reads the streams and notes when they arrived. Prints lateness in ms
of both, and its drift over the run. Writes `out/bench/pace.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvloop

from tests.simulator.server_process import serving
from workers.load.answer import events
from workers.load.framing import ResponseFraming
from workers.load.recording import Recording
from workers.load.transport import RecordingTransport
from workers.simulator.http.pace import PACE_FILE_ENV, read_pace

OUT = Path("out/bench/pace.json")
STREAMS = 64
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 128  # a request takes some seconds: within a minute each stream ends and begins several times
NUMBER = re.compile(rb'"id": ?"[a-z]+-0*(\d+)"')
Figures = dict[str, float]


def flags() -> list[str]:
    graphs = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 8, 16, 32, STREAMS]}
    lengths = ["--max-num-seqs", str(STREAMS), "--max-model-len", "4096"]
    return ["--tensor-parallel-size", "2", *lengths, "--compilation-config", json.dumps(graphs)]


def measure(seconds: float) -> dict[str, Any]:
    """One run of so many seconds; figures in ms."""
    with tempfile.TemporaryDirectory(prefix="autotune-pace-") as folder:
        pace, arrived = Path(folder) / "pace", Path(folder) / "arrived.json"
        with serving(Path(folder) / "log", *flags(), env={PACE_FILE_ENV: str(pace)}) as (client, server):
            real_time = os.sched_getscheduler(server.pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
            before = cpu_s(server.pid)
            reader = [
                sys.executable,
                "-m",
                "tests.bench.simulator_pace",
                "--read",
                str(client.base_url.port),
                str(seconds),
            ]
            subprocess.run([*reader, str(arrived)], check=True)
            server_cpu_s = cpu_s(server.pid) - before
            server.send_signal(signal.SIGTERM)
            server.wait(10)
        rows = read_pace(pace)
        reading = json.loads(arrived.read_text())
    return figures(rows, reading) | {
        "real_time": real_time,
        "server_cpu_pct": round(100 * server_cpu_s / reading["seconds"], 1),
        "reader_cpu_pct": round(100 * reading["cpu_s"] / reading["seconds"], 1),
    }


def figures(rows: Sequence[tuple[int, int, int, int]], reading: dict[str, Any]) -> dict[str, Any]:
    """Server rows (request, event, due ns, sent ns) against arrivals (request -> ns of each event)."""
    due = np.array([r[2] for r in rows], dtype=np.int64)
    sent = (np.array([r[3] for r in rows], dtype=np.int64) - due) / 1e6
    planned = {(r[0], r[1]): r[2] for r in rows}
    pairs = [
        (planned[int(number), index], at)
        for number, stamps in reading["arrived"].items()
        for index, at in enumerate(stamps)
        if (int(number), index) in planned
    ]
    when = np.array([p[0] for p in pairs], dtype=np.int64)
    arrived = np.array([p[1] - p[0] for p in pairs], dtype=np.int64) / 1e6
    steps = np.unique(due)
    return {
        "streams": STREAMS,
        "tokens": len(rows),
        "seconds": round((due.max() - due.min()) / 1e9, 1),
        "step_ms_p50": round(float(np.median(np.diff(steps))) / 1e6, 2),
        "kernel_stamps": reading["kernel"],
        "sent": spread(due, sent),
        "arrived": spread(when, arrived),
    }


def spread(at_ns: Any, late_ms: Any) -> Figures:
    """Lateness, negative where a token came before its time; the p99 is that of its absolute value.

    Drift is how much lateness grows over one minute, as the slope of a line through all of it.
    """
    slope = np.polyfit((at_ns - at_ns.min()) / 60e9, late_ms, 1)[0]
    named = {
        "p50_ms": np.median(late_ms),
        "p99_ms": np.percentile(np.abs(late_ms), 99),
        "earliest_ms": late_ms.min(),
        "latest_ms": late_ms.max(),
        "drift_ms_per_minute": slope,
    }
    return {name: round(float(value), 4) for name, value in named.items()}


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def read_streams(port: int, seconds: float) -> dict[str, Any]:
    """Keep all streams busy; afterwards take the arrival of each event out of the recorded reads."""
    transport = RecordingTransport()
    url = httpx.URL(f"http://127.0.0.1:{port}/v1/completions")
    recordings: list[Recording] = []
    deadline = time.monotonic() + seconds
    fixed = {"model": "sim", "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}

    async def one(client: httpx.AsyncClient, stream: int) -> None:
        round_ = 0
        while time.monotonic() < deadline:
            prompt = [100 + (stream * 7919 + round_ * 104729 + i * 31) % 900 for i in range(PROMPT_TOKENS)]
            recordings.append(recording := Recording())
            request = client.build_request(
                "POST", url, json={**fixed, "prompt": prompt}, extensions={"recording": recording}
            )
            await (await client.send(request, stream=True)).aclose()
            round_ += 1

    gc.disable()
    started = time.monotonic()
    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=None) as client:
        await transport.open(url, STREAMS)
        async with asyncio.TaskGroup() as group:
            for stream in range(STREAMS):
                group.create_task(one(client, stream))
    used = time.process_time()
    elapsed = time.monotonic() - started
    return {
        "arrived": dict(filter(None, map(arrivals, recordings))),
        "kernel": all(r.kernel_times for r in recordings),
        "cpu_s": used,
        "seconds": elapsed,
    }


def arrivals(recording: Recording) -> tuple[int, list[int]] | None:
    """The request's number and when each of its token events was complete, in ns of the monotonic clock."""
    framing = ResponseFraming()
    ends: list[tuple[int, int]] = []
    body = b""
    for read, at in zip(recording.reads, recording.arrivals_ns(), strict=True):
        body += framing.feed(read.data)
        ends.append((len(body), at))
    number = NUMBER.search(body)
    if number is None:
        return None
    stamps = [next(at for end, at in ends if end >= event.end) for event in events(body) if b'"text"' in event.data]
    return int(number[1]), stamps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ten seconds")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.read:
        port, seconds, target = chosen.read
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            Path(target).write_text(json.dumps(runner.run(read_streams(int(port), float(seconds)))))
        return
    row = measure(10 if chosen.quick else 60)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"quick": chosen.quick, **row}, indent=2))
    lines = [
        f"{row['streams']} streams, {row['tokens']} tokens in {row['seconds']} s, a step every {row['step_ms_p50']} ms",
        f"{'real-time class' if row['real_time'] else 'without the right to the real-time class'}, "
        f"server {row['server_cpu_pct']} % of a core, reader {row['reader_cpu_pct']} %",
        "lateness   p50 ms   p99 ms   earliest   latest   drift ms a minute",
    ]
    for name in ("sent", "arrived"):
        f = row[name]
        lines.append(
            f"{name:9}  {f['p50_ms']:6.3f}   {f['p99_ms']:6.3f}     {f['earliest_ms']:6.3f}   {f['latest_ms']:6.3f}   "
            f"{f['drift_ms_per_minute']:+.4f}"
        )
    if not row["kernel_stamps"]:
        lines.append("this kernel stamps no arrivals: `arrived` holds the reader's own delay too")
    sys.stdout.write("\n".join([*lines, f"written to {OUT}", ""]))


if __name__ == "__main__":
    main()
