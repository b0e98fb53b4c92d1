"""vLLM's command line as far as the simulator understands it.

Wrong arguments end the process with status 2 and argparse's own text, as the real server does. Flags that the
simulator accepts without an effect are listed as such in their help.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from autotune.domain.value import Value

_NO_EFFECT = "accepted, without effect on the simulation"
_LONGEST = 262_144  # context of the served model
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256, 512)
_SWITCHES = ("--enable-chunked-prefill", "--enable-prefix-caching", "--enable-expert-parallel", "--async-scheduling")
_INERT_SWITCHES = (
    "--disable-hybrid-kv-cache-manager",
    "--cudagraph-metrics",
    "--fail-on-environ-validation",
)
_INERT_NUMBERS = (
    "--seed",
    "--api-server-count",
    "--data-parallel-size-local",
    "--pipeline-parallel-size",
    "--decode-context-parallel-size",
    "--prefill-context-parallel-size",
    "--kv-cache-memory-bytes",
    "--max-num-partial-prefills",
    "--long-prefill-token-threshold",
    "--stream-interval",
)
_INERT_CHOICES = {
    "--distributed-executor-backend": ("mp", "ray", "uni", "external_launcher"),
    "--safetensors-load-strategy": ("lazy", "eager", "prefetch"),
    "--performance-mode": ("balanced", "interactivity", "throughput"),
    "--mamba-cache-mode": ("none", "align", "all"),
    "--mm-processor-cache-type": ("lru", "shm"),
    "--scheduling-policy": ("fcfs", "priority"),
}


class Flags(Value):
    """A parsed command line; JSON-valued flags are objects. None: not given."""

    model_path: str
    host: str
    port: int
    served_model_name: str | None
    tensor_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool | None
    block_size: int | None
    enable_prefix_caching: bool | None
    async_scheduling: bool | None
    enable_prompt_tokens_details: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool | None
    max_model_len: int | None
    gpu_memory_utilization: float
    enforce_eager: bool
    compilation_config: dict[str, Any]
    speculative_config: dict[str, Any] | None
    additional_config: dict[str, Any]


def parse_flags(argv: Sequence[str]) -> Flags:
    """Parse the words after the program name. Raises SystemExit(2) after argparse printed the reason."""
    parsed = vars(_parser().parse_args([_dashed(word) for word in argv]))
    if parsed["max_num_batched_tokens"] is None:
        parsed["max_num_batched_tokens"] = _default_budget(parsed["enable_chunked_prefill"], parsed["max_model_len"])
    names = set(Flags.model_fields)
    return Flags.model_validate({name: value for name, value in parsed.items() if name in names})


def _default_budget(chunked_prefill: bool | None, max_model_len: int | None) -> int:
    """Tokens a step where nothing is said: without chunked prefill a whole prompt must fit."""
    return max(2048, max_model_len or _LONGEST) if chunked_prefill is False else 2048


def _dashed(word: str) -> str:
    """vLLM takes underscores for dashes in the name of a flag."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to a JSON object.")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workers.simulator", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="{serve}")
    serve = commands.add_parser("serve", help="start the endpoint")
    serve.add_argument("model_path", help="path of a system file")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--served-model-name", default=None)
    serve.add_argument("--tensor-parallel-size", "-tp", "--tp", type=int, default=1)
    serve.add_argument("--data-parallel-size", "-dp", "--dp", type=int, default=1)
    for flag in _SWITCHES:
        serve.add_argument(flag, action=argparse.BooleanOptionalAction, default=None)
    serve.add_argument("--block-size", type=int, choices=BLOCK_SIZES, default=None)
    serve.add_argument("--enable-prompt-tokens-details", action=argparse.BooleanOptionalAction, default=False)
    serve.add_argument("--max-num-seqs", type=int, default=256)
    serve.add_argument("--max-num-batched-tokens", type=int, default=None)
    serve.add_argument("--max-model-len", type=int, default=None)
    serve.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    serve.add_argument("--enforce-eager", action="store_true")
    serve.add_argument("--compilation-config", "-cc", type=_json_object, default={})
    serve.add_argument("--speculative-config", type=_json_object, default=None)
    serve.add_argument("--additional-config", type=_json_object, default={})
    _add_inert(serve)
    return parser


def _add_inert(serve: argparse.ArgumentParser) -> None:
    """The real server's flags that change nothing here: only their form is checked."""
    for flag in ("--trust-remote-code", "--disable-log-stats", "--disable-log-requests"):
        serve.add_argument(flag, action="store_true", help=_NO_EFFECT)
    for flag in _INERT_SWITCHES:
        serve.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=_NO_EFFECT)
    for flag in _INERT_NUMBERS:
        serve.add_argument(flag, type=int, default=None, help=_NO_EFFECT)
    for flag in ("--cpu-offload-gb", "--mm-processor-cache-gb"):
        serve.add_argument(flag, type=float, default=None, help=_NO_EFFECT)
    for flag in ("--hf-overrides", "--kv-transfer-config", "--model-loader-extra-config"):
        serve.add_argument(flag, type=_json_object, default=None, help=_NO_EFFECT)
    for flag, words in _INERT_CHOICES.items():
        serve.add_argument(flag, choices=words, default=None, help=_NO_EFFECT)
    for flag in ("--dtype", "--uvicorn-log-level", "--quantization", "--kv-cache-dtype", "--mamba-ssm-cache-dtype"):
        serve.add_argument(flag, default=None, help=_NO_EFFECT)
