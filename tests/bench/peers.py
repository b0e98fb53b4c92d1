"""What another load generator of the field says of the simulated server, beside what ours says.

Drives one server process with `evalscope perf` from an environment of its own, then with our load process: chat
requests of the same lengths, number and concurrency. Writes `out/bench/peers.json`. `--quick` takes one level.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from autotune.domain.workload import LoadLevel, Workload
from tests.simulator.server_process import SYSTEM, serving
from workers.load.process import LoadProcess
from workers.load.prompts import PromptSource
from workers.load.spec import LoadSpec

OUT = Path("out/bench/peers.json")
PEER = Path("out/peers-venv/bin/evalscope")
PROMPT_WORDS, OUTPUT_TOKENS = 256, 128
CONCURRENCIES = (1, 4, 8)
REQUESTS_A_STREAM = 4
GRAPHS = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 4, 8]}
FLAGS = (
    *("--tensor-parallel-size", "2", "--max-num-seqs", "8", "--max-model-len", "4096"),
    *("--compilation-config", json.dumps(GRAPHS)),
)
Figures = dict[str, float]


def theirs(base_url: str, spec: LoadSpec, level: LoadLevel, folder: Path) -> Figures:
    """One level by the peer, whose prompts are lines of a file. Means over all requests."""
    prompts = PromptSource(spec)
    lines = [" ".join(map(str, prompts.prompt("peer", index))) for index in range(level.requests)]
    file = folder / f"prompts-{level.name}"
    file.write_text("\n".join(lines))
    out = folder / f"peer-{level.name}"
    argv = [str(PEER.absolute()), "perf", "--url", f"{base_url}/v1/chat/completions", "--api", "openai"]
    argv += ["--model", spec.model, "--dataset", "line_by_line", "--dataset-path", str(file), "--stream"]
    argv += ["--max-tokens", str(OUTPUT_TOKENS), "--parallel", str(level.concurrency), "--number", str(level.requests)]
    argv += ["--outputs-dir", str(out), "--no-timestamp"]
    # No hub is asked for anything: the data set is the file, and lengths come from the server's own count.
    home = {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "MODELSCOPE_CACHE": str(folder), "PATH": os.environ["PATH"]}
    done = subprocess.run(argv, env=home, cwd=folder, capture_output=True, text=True, check=False)
    found = list(out.rglob("benchmark_summary.json"))
    if done.returncode != 0 or not found:
        raise SystemExit(f"evalscope perf failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    summary = json.loads(found[0].read_text())
    if summary["Success Requests"] != level.requests:
        raise SystemExit(f"evalscope perf: {summary['Success Requests']} of {level.requests} requests succeeded")
    return {"ttft_ms": summary["Avg TTFT (ms)"], "tpot_ms": summary["Avg TPOT (ms)"]}


def ours(spec: LoadSpec, folder: Path) -> dict[str, Figures]:
    """All levels by our load process."""
    process = LoadProcess.start(spec, folder, {"PATH": os.environ["PATH"]})
    while not process.ended:
        time.sleep(0.05)
    return {
        name: {
            "ttft_ms": statistics.mean(s.ttft_ms for s in samples if s.ttft_ms is not None),
            "tpot_ms": statistics.mean(s.tpot_ms for s in samples if s.tpot_ms is not None),
        }
        for name, samples in process.result().levels.items()
    }


def measure(quick: bool) -> list[dict[str, Any]]:
    concurrencies = CONCURRENCIES[1:2] if quick else CONCURRENCIES
    levels = tuple(LoadLevel(concurrency=c, requests=c * REQUESTS_A_STREAM) for c in concurrencies)
    workload = Workload(prompt_tokens=PROMPT_WORDS, output_tokens=OUTPUT_TOKENS, levels=levels)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-peers-") as name,
        serving(Path(name) / "log", *FLAGS) as (client, _),
    ):
        folder = Path(name)
        base_url = str(client.base_url)
        spec = LoadSpec(base_url=base_url, model="sim", workload=workload, seed=1, api="chat")
        peer = {level.name: theirs(base_url, spec, level, folder) for level in levels}
        own = ours(spec, folder)
    return [{"level": level.name, "evalscope": peer[level.name], "autotune": own[level.name]} for level in levels]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    rows = measure(quick)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"quick": quick, "system": SYSTEM.stem, "rows": rows}, indent=2))
    lines = ["level   TTFT ms: evalscope   ours     TPOT ms: evalscope   ours     theirs / ours"]
    for row in rows:
        peer, own = row["evalscope"], row["autotune"]
        lines.append(
            f"{row['level']:5}            {peer['ttft_ms']:9.1f}  {own['ttft_ms']:6.1f}              "
            f"{peer['tpot_ms']:9.2f}  {own['tpot_ms']:5.2f}            {peer['tpot_ms'] / own['tpot_ms']:.4f}"
        )
    sys.stdout.write("\n".join([*lines, f"written to {OUT}", ""]))


if __name__ == "__main__":
    main()
