"""`python -m workers.engines.llama_server -m MODEL --port PORT ...`: llama.cpp's HTTP server from the xllamacpp wheel.

The wheel ships the engine as a Python extension, without the `llama-server` program. This is that program's command
line, as far as a CPU host needs it: the flags, their values and their defaults are llama-server's own. The engine
writes its log to standard error by itself.

Ends with 0 after SIGTERM or SIGINT, with 2 for flags that are refused here, with 1 when the engine does not start.
An assertion of the engine ends the process with SIGABRT.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

AUTO = -1  # how llama.cpp spells "find a value yourself" in whole-number settings
NO_ENGINE = 1
STOP_S = 5  # the engine's own way out sometimes does not come to an end; SIGALRM ends it then

FLASH_ATTENTION = {
    "auto": "LLAMA_FLASH_ATTN_TYPE_AUTO",
    "on": "LLAMA_FLASH_ATTN_TYPE_ENABLED",
    "off": "LLAMA_FLASH_ATTN_TYPE_DISABLED",
}
CACHE_TYPES = {
    name: f"GGML_TYPE_{name.upper()}"
    for name in ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
}
SPECULATION = {
    name: f"COMMON_SPECULATIVE_TYPE_{name.upper().replace('-', '_')}"
    for name in ("none", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
}


def parser() -> argparse.ArgumentParser:
    """llama-server's flags. An option that is not given leaves the engine's default."""
    flags = argparse.ArgumentParser(prog="llama_server", description="llama.cpp's HTTP server", allow_abbrev=False)
    add = flags.add_argument
    add("-m", "--model", required=True, help="path of a GGUF file")
    add("-a", "--alias", help="name of the model in the API")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8080)
    add("-t", "--threads", type=int, help="threads of generation; engine's default: one a physical core")
    add("-tb", "--threads-batch", type=int, help="threads of prompt processing; engine's default: as --threads")
    add("--poll", type=int, help="busy waiting of the threads, 0 to 100; engine's default: 50")
    add("-b", "--batch-size", type=int, help="logical batch in tokens; engine's default: 2048")
    add("-ub", "--ubatch-size", type=int, help="physical batch in tokens; engine's default: 512")
    add("-np", "--parallel", type=int, default=AUTO, help="slots; -1: four over one shared KV cache (default)")
    add("-kvu", "--kv-unified", action=argparse.BooleanOptionalAction, help="one KV cache for all slots")
    add("-c", "--ctx-size", type=int, help="tokens of all slots together; engine's default: the model's context length")
    add("-fa", "--flash-attn", choices=FLASH_ATTENTION, default="auto")
    add("-ctk", "--cache-type-k", choices=CACHE_TYPES, default="f16")
    add("-ctv", "--cache-type-v", choices=CACHE_TYPES, default="f16")
    add("--spec-type", choices=SPECULATION, default="none", help="speculation without a draft model")
    add("--spec-ngram-simple-size-n", type=int, help="tokens that must match; engine's default: 12")
    add("--spec-ngram-simple-size-m", type=int, help="tokens of a draft; engine's default: 48")
    add("--spec-ngram-simple-min-hits", type=int, help="engine's default: 1")
    add("--spec-ngram-mod-n-match", type=int, help="tokens that must match; engine's default: 24")
    add("--spec-ngram-mod-n-min", type=int, help="shortest draft in tokens; engine's default: 48")
    add("--spec-ngram-mod-n-max", type=int, help="longest draft in tokens; engine's default: 64")
    add("--metrics", action=argparse.BooleanOptionalAction, default=True, help="serve /metrics")
    return flags


def parameters(flags: argparse.Namespace, engine: ModuleType) -> Any:
    """The engine's `CommonParams`. Raises OverflowError for a number that no C int holds."""
    params = engine.CommonParams()
    params.model.path = flags.model
    params.model_alias = {flags.alias} if flags.alias else set()
    params.hostnames = [flags.host]
    params.port = flags.port
    params.n_parallel = flags.parallel
    params.endpoint_metrics = flags.metrics
    params.flash_attn_type = getattr(engine.llama_flash_attn_type, FLASH_ATTENTION[flags.flash_attn])
    params.cache_type_k = getattr(engine.ggml_type, CACHE_TYPES[flags.cache_type_k])
    params.cache_type_v = getattr(engine.ggml_type, CACHE_TYPES[flags.cache_type_v])
    speculative = params.speculative
    speculative.types = [getattr(engine.common_speculative_type, SPECULATION[flags.spec_type])]
    given: list[tuple[Any, str, int | None]] = [
        (params, "kv_unified", flags.kv_unified),
        (params.cpuparams, "n_threads", flags.threads),
        (params.cpuparams_batch, "n_threads", flags.threads_batch),
        (params.cpuparams, "poll", flags.poll),
        (params.cpuparams_batch, "poll", flags.poll),
        (params, "n_batch", flags.batch_size),
        (params, "n_ubatch", flags.ubatch_size),
        (params, "n_ctx", flags.ctx_size),
        (speculative.ngram_simple, "size_n", flags.spec_ngram_simple_size_n),
        (speculative.ngram_simple, "size_m", flags.spec_ngram_simple_size_m),
        (speculative.ngram_simple, "min_hits", flags.spec_ngram_simple_min_hits),
        (speculative.ngram_mod, "n_match", flags.spec_ngram_mod_n_match),
        (speculative.ngram_mod, "n_min", flags.spec_ngram_mod_n_min),
        (speculative.ngram_mod, "n_max", flags.spec_ngram_mod_n_max),
    ]
    for owner, name, value in given:
        if value is not None:
            setattr(owner, name, value)
    return params


def serve(flags: argparse.Namespace) -> int:
    """Serve until a signal comes; the exit code."""
    try:
        engine = importlib.import_module("xllamacpp")
    except ModuleNotFoundError as error:
        if error.name != "xllamacpp":
            raise
        return _fail("the Python package xllamacpp is not installed here; `make setup-llama-cpp` installs it")
    try:
        server = engine.Server(parameters(flags, engine))
    except (RuntimeError, OverflowError) as error:
        return _fail(str(error))
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
    signal.alarm(STOP_S)
    del server  # the engine stops its threads and closes its port
    signal.alarm(0)
    return 0


def _fail(message: str) -> int:
    sys.stderr.write(f"llama_server: error: {message}\n")
    return NO_ENGINE


def main(arguments: Sequence[str]) -> int:
    """The exit code. Raises SystemExit(2) for flags that are refused, as argparse does."""
    return serve(parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
