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


class Flags(Value):
    """A parsed command line; JSON-valued flags are objects. None: not given."""

    model_path: str
    host: str
    port: int
    served_model_name: str | None
    tensor_parallel_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None
    gpu_memory_utilization: float
    enforce_eager: bool
    compilation_config: dict[str, Any]
    speculative_config: dict[str, Any] | None
    additional_config: dict[str, Any]


def parse_flags(argv: Sequence[str]) -> Flags:
    """Parse the words after the program name. Raises SystemExit(2) after argparse printed the reason."""
    parsed = vars(_parser().parse_args([_dashed(word) for word in argv]))
    names = set(Flags.model_fields)
    return Flags.model_validate({name: value for name, value in parsed.items() if name in names})


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
    serve.add_argument("--max-num-seqs", type=int, default=256)
    serve.add_argument("--max-num-batched-tokens", type=int, default=2048)
    serve.add_argument("--max-model-len", type=int, default=None)
    serve.add_argument("--gpu-memory-utilization", type=float, default=0.92)
    serve.add_argument("--enforce-eager", action="store_true")
    serve.add_argument("--compilation-config", "-cc", type=_json_object, default={})
    serve.add_argument("--speculative-config", type=_json_object, default=None)
    serve.add_argument("--additional-config", type=_json_object, default={})
    for flag in ("--trust-remote-code", "--disable-log-stats", "--disable-log-requests"):
        serve.add_argument(flag, action="store_true", help=_NO_EFFECT)
    for flag in ("--enable-prefix-caching", "--enable-chunked-prefill", "--async-scheduling"):
        serve.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=_NO_EFFECT)
    serve.add_argument("--enable-expert-parallel", action="store_true", help=_NO_EFFECT)
    for flag in ("--seed", "--block-size", "--api-server-count"):
        serve.add_argument(flag, type=int, default=None, help=_NO_EFFECT)
    for flag in ("--dtype", "--distributed-executor-backend", "--safetensors-load-strategy", "--uvicorn-log-level"):
        serve.add_argument(flag, default=None, help=_NO_EFFECT)
    return parser
