"""How other load generators are run, and what they say of themselves. Nothing is ever installed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.domain.workload import Arrivals, LoadLevel
from autotune.errors import AutotuneError, InvalidRequest, NotFound
from workers.load.requests import CHAT_PATH, COMPLETIONS_PATH
from workers.load.spec import Api
from workers.parity.definitions import Client

LOG_FILE = "client.log"
LAST_WORDS = 1_500  # characters of a client's own log
STOP_S = 5.0
VERSION_S = 60.0
_SEED_OF_ARRIVALS = 42


class PeerFailed(AutotuneError):
    """The other client gave no result. The message has its last words."""


@dataclass(frozen=True, slots=True)
class PeerLoad:
    """One level for another client: a prompt for each request, all answers of one length."""

    url: str
    model: str
    api: Api
    level: LoadLevel
    prompts: Sequence[str]
    output_tokens: int
    tokenizer: str | None = None

    @property
    def path(self) -> str:
        return CHAT_PATH if self.api == "chat" else COMPLETIONS_PATH


@dataclass(frozen=True, slots=True)
class Peer:
    """`argv(load, folder)` writes the prompts and says how to start behind the program; `read(folder)` its figures.

    `key_env`: variables by which it takes a server's key; without one it takes none but on its command line.
    """

    program: str
    package: str
    argv: Callable[[PeerLoad, Path], Sequence[str]]
    read: Callable[[Path], dict[str, float]]
    key_env: tuple[str, ...] = ()
    rates: bool = True


def program_of(peer: Peer, python: Path | None) -> Path:
    """The client's program beside this Python, or on PATH. Raises NotFound."""
    if python is not None:
        beside = python.absolute().with_name(peer.program)
        if os.access(beside, os.X_OK) and beside.is_file():
            return beside
        raise NotFound(f"there is no {peer.program} beside {python}; nothing is installed by this command")
    found = shutil.which(peer.program)
    if found is None:
        raise NotFound(
            f"{peer.program} is not on PATH; name the Python of the environment that has it with --python "
            "(nothing is installed by this command)"
        )
    return Path(found).absolute()


def version_of(peer: Peer, program: Path) -> str | None:
    """The installed version, by the Python beside the program; None where that can't be told."""
    code = f"import importlib.metadata as m; print(m.version({peer.package!r}))"
    try:
        done = subprocess.run(
            [str(program.with_name("python")), "-c", code],
            capture_output=True,
            text=True,
            timeout=VERSION_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def check_key(peer: Peer, api_key_env: str | None) -> None:
    """Raises InvalidRequest where the client would have to show the key to every user of this host."""
    if api_key_env is not None and not peer.key_env:
        raise InvalidRequest(
            f"{peer.package} takes a key only on its command line, where others see it: use --client vllm"
        )


def check_level(peer: Peer, level: LoadLevel) -> None:
    """Raises InvalidRequest for a load that this client can't send in the same way."""
    if level.duration_s is not None or level.trace_file is not None or level.rate_to_per_s is not None:
        raise InvalidRequest(f"{level.name}: {peer.package} gets a number of requests; leave out durations and traces")
    if level.rate_per_s is not None and (not peer.rates or level.arrivals is not Arrivals.POISSON):
        raise InvalidRequest(f"{level.name}: {peer.package} can't offer this rate in the same way; use a closed loop")


def run_peer(peer: Peer, program: Path, load: PeerLoad, folder: Path, key: str | None) -> dict[str, float]:
    """The client's figures for one level. On KeyboardInterrupt its processes are ended.

    It gets no network but the server: hubs are off. Raises PeerFailed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    argv = [str(program), *peer.argv(load, folder)]
    hub = os.environ.get("HF_HOME") or str(Path("~/.cache/huggingface").expanduser())
    env = {
        "PATH": f"{program.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "HOME": str(folder),
        "HF_HOME": hub,
        "HF_HUB_OFFLINE": "1",
        "MODELSCOPE_CACHE": str(folder),
        "LANG": "C.UTF-8",
        **{name: key for name in peer.key_env if key is not None},
    }
    with (folder / LOG_FILE).open("wb") as log:
        try:
            process = subprocess.Popen(
                argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        except OSError as error:
            raise PeerFailed(f"{peer.program} does not start: {error}") from error
        try:
            code = process.wait()
        finally:
            _stop(process)
    if code != 0:
        raise PeerFailed(f"{peer.program} ended with code {code}: {_last_words(folder)}")
    try:
        return peer.read(folder)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        why = f"{type(error).__name__}: {error}"
        raise PeerFailed(f"{peer.program} left no result that can be read ({why}): {_last_words(folder)}") from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, wanted)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)


def _last_words(folder: Path) -> str:
    text = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:].strip()
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text) or "it said nothing"


def _only(folder: Path, pattern: str) -> Any:
    (file,) = folder.rglob(pattern)
    return json.loads(file.read_text(encoding="utf-8"))


def _known(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in figures.items() if value is not None}


# --- evalscope --------------------------------------------------------------------------------


def _evalscope_argv(load: PeerLoad, folder: Path) -> Sequence[str]:
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(load.prompts) + "\n", encoding="utf-8")
    argv = ["perf", "--url", load.url + load.path, "--api", "openai", "--model", load.model, "--stream"]
    argv += ["--dataset", "line_by_line", "--dataset-path", str(prompts)]
    argv += ["--parallel", str(load.level.concurrency), "--number", str(len(load.prompts))]
    argv += ["--max-tokens", str(load.output_tokens), "--extra-args", '{"ignore_eos": true}', "--temperature", "0"]
    if load.level.rate_per_s is not None:
        argv += ["--rate", f"{load.level.rate_per_s:g}"]
    return [*argv, "--outputs-dir", str(folder / "out"), "--no-timestamp", "--no-test-connection"]


def _evalscope_read(folder: Path) -> dict[str, float]:
    summary = _only(folder / "out", "benchmark_summary.json")
    p99 = next(row for row in _only(folder / "out", "benchmark_percentile.json") if row["Percentiles"] == "99%")
    return _known(
        {
            "requests": summary["Total Requests"],
            "failed": summary["Failed Requests"],
            "ttft_ms": summary["Avg TTFT (ms)"],
            "ttft_p99_ms": p99["TTFT (ms)"],
            "tpot_ms": summary["Avg TPOT (ms)"],
            "tpot_p99_ms": p99["TPOT (ms)"],
            "itl_ms": summary.get("Avg ITL (ms)"),
            "e2e_ms": summary["Avg Latency (s)"] * 1000,
            "output_tok_s": summary["Output Throughput (tok/s)"],
            "prompt_tokens": summary.get("Avg Input Tokens"),
            "output_tokens": summary["Avg Output Tokens"],
        }
    )


# --- vLLM -------------------------------------------------------------------------------------


def _vllm_argv(load: PeerLoad, folder: Path) -> Sequence[str]:
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in load.prompts), encoding="utf-8")
    backend = "openai-chat" if load.api == "chat" else "openai"
    argv = ["bench", "serve", "--backend", backend, "--base-url", load.url, "--endpoint", load.path]
    argv += ["--model", load.model, *(["--tokenizer", load.tokenizer] if load.tokenizer else [])]
    argv += ["--dataset-name", "custom", "--dataset-path", str(prompts), "--skip-chat-template", "--disable-shuffle"]
    argv += ["--custom-output-len", str(load.output_tokens), "--num-prompts", str(len(load.prompts)), "--ignore-eos"]
    argv += ["--max-concurrency", str(load.level.concurrency), "--temperature", "0", "--disable-tqdm"]
    # A test request would be a copy of the first prompt, which the server's cache then has.
    argv += ["--ready-check-timeout-sec", "0", "--seed", str(_SEED_OF_ARRIVALS)]
    if load.level.rate_per_s is not None:
        argv += ["--request-rate", f"{load.level.rate_per_s:g}"]
    argv += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "99"]
    return [*argv, "--save-result", "--result-dir", str(folder / "out"), "--result-filename", "result.json"]


def _vllm_read(folder: Path) -> dict[str, float]:
    result = _only(folder / "out", "result.json")
    completed = result["completed"]
    return _known(
        {
            "requests": result["num_prompts"],
            "failed": result["num_prompts"] - completed,
            "ttft_ms": result["mean_ttft_ms"],
            "ttft_p99_ms": result["p99_ttft_ms"],
            "tpot_ms": result["mean_tpot_ms"],
            "tpot_p99_ms": result["p99_tpot_ms"],
            "itl_ms": result["mean_itl_ms"],
            "e2e_ms": result["mean_e2el_ms"],
            "output_tok_s": result["output_throughput"],
            "prompt_tokens": result["total_input_tokens"] / completed if completed else None,
            "output_tokens": result["total_output_tokens"] / completed if completed else None,
        }
    )


# --- guidellm ---------------------------------------------------------------------------------


def _guidellm_argv(load: PeerLoad, folder: Path) -> Sequence[str]:
    prompts = folder / "prompts.jsonl"
    lines = ({"prompt": prompt, "output_tokens_count": load.output_tokens} for prompt in load.prompts)
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    argv = ["benchmark", "run", "--target", load.url, "--model", load.model, "--profile", "concurrent"]
    argv += ["--rate", str(load.level.concurrency), "--max-requests", str(len(load.prompts)), "--data", str(prompts)]
    argv += ["--request-type", "chat_completions" if load.api == "chat" else "text_completions"]
    return [*argv, "--outputs", "json", "--output-dir", str(folder / "out"), "--disable-console"]


def _guidellm_read(folder: Path) -> dict[str, float]:
    (benchmark,) = _only(folder / "out", "*.json")["benchmarks"]
    metrics = benchmark["metrics"]

    def good(name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = metrics[name]["successful"]
        return found

    totals = metrics["request_totals"]
    rate = metrics.get("output_tokens_per_second", {}).get("successful")
    return _known(
        {
            "requests": totals["total"],
            "failed": totals["total"] - totals["successful"],
            "ttft_ms": good("time_to_first_token_ms")["mean"],
            "ttft_p99_ms": good("time_to_first_token_ms")["percentiles"]["p99"],
            "tpot_ms": good("inter_token_latency_ms")["mean"],
            "tpot_p99_ms": good("inter_token_latency_ms")["percentiles"]["p99"],
            "whole_latency_per_token_ms": good("time_per_output_token_ms")["mean"],
            "e2e_ms": good("request_latency")["mean"] * 1000,
            "output_tok_s": None if rate is None else rate["mean"],
            "prompt_tokens": good("prompt_token_count")["mean"],
            "output_tokens": good("output_token_count")["mean"],
        }
    )


PEERS: Mapping[Client, Peer] = {
    Client.EVALSCOPE: Peer("evalscope", "evalscope", _evalscope_argv, _evalscope_read),
    Client.VLLM: Peer("vllm", "vllm", _vllm_argv, _vllm_read, key_env=("OPENAI_API_KEY",)),
    Client.GUIDELLM: Peer(
        "guidellm",
        "guidellm",
        _guidellm_argv,
        _guidellm_read,
        key_env=("GUIDELLM__OPENAI__API_KEY", "OPENAI_API_KEY"),
        rates=False,
    ),
}
