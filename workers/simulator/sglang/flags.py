"""SGLang's command line as far as the simulator understands it.

Wrong arguments end the process with status 2 and argparse's own text, as the real server does. Names may be
shortened as argparse allows; `--cuda-graph-bs` and `--cuda-graph-max-bs` are no names of this release, and as short
forms they are ambiguous.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from autotune.domain.value import Value

_NO_EFFECT = "accepted, without effect on the simulation"
_SWITCHES = (
    "--enable-dp-attention",
    "--enable-dp-lm-head",
    "--disable-cuda-graph",
    "--disable-radix-cache",
    "--enable-hierarchical-cache",
    "--disable-overlap-schedule",
    "--enable-metrics",
    "--enable-cache-report",
)
_INERT_SWITCHES = (
    "--trust-remote-code",
    "--enable-prefill-cp",
    "--enable-attn-tp-input-scattered",
    "--disable-shared-experts-fusion",
    "--enable-multimodal",
    "--enable-multi-layer-eagle",
    "--speculative-adaptive",
    "--enable-prefill-delayer",
    "--skip-server-warmup",
    "--enable-mixed-chunk",
)
_INERT_NUMBERS = (
    "--moe-dense-tp-size",
    "--attn-cp-size",
    "--prefill-max-requests",
    "--max-mamba-cache-size",
    "--hicache-size",
    "--prefill-delayer-max-delay-passes",
    "--num-continuous-decode-steps",
    "--tokenizer-worker-num",
    "--stream-interval",
    "--disaggregation-bootstrap-port",
    "--random-seed",
    "--base-gpu-id",
    "--nnodes",
    "--node-rank",
    "--ep-num-redundant-experts",
)
_INERT_SHARES = ("--swa-full-tokens-ratio", "--schedule-conservativeness", "--watchdog-timeout")
_INERT_TEXTS = (
    "--tokenizer-path",
    "--log-level",
    "--dist-init-addr",
    "--disaggregation-ib-device",
    "--speculative-draft-model-path",
    "--speculative-draft-model-quantization",
    "--tool-call-parser",
    "--reasoning-parser",
)
_INERT_CHOICES = {
    "--cp-strategy": ("interleave", "zigzag"),
    "--load-balance-method": ("auto", "round_robin", "total_tokens", "total_requests", "decode_round_robin"),
    "--ep-dispatch-algorithm": ("static", "dynamic", "fake"),
    "--sampling-backend": ("flashinfer", "pytorch", "ascend"),
    "--attention-backend": ("ascend", "dsv4", "triton", "torch_native"),
    "--mm-attention-backend": ("ascend_attn", "sdpa", "fa3", "triton_attn"),
    "--device": ("npu", "cpu", "cuda"),
    "--dtype": ("auto", "half", "float16", "bfloat16", "float", "float32"),
    "--quantization": ("modelslim", "fp8", "awq", "gptq", "w8a8_int8"),
    "--kv-cache-dtype": ("auto", "bfloat16", "fp8_e4m3", "fp8_e5m2"),
    "--mamba-ssm-dtype": ("float32", "bfloat16", "float16"),
    "--schedule-policy": ("lpm", "random", "fcfs", "dfs-weight", "lof", "priority"),
    "--hicache-io-backend": ("direct", "kernel", "kernel_ascend"),
    "--hicache-write-policy": ("write_back", "write_through", "write_through_selective"),
    "--cuda-graph-backend-prefill": ("disabled", "breakable", "full"),
    "--speculative-draft-attention-backend": ("ascend", "triton", "torch_native"),
    "--disaggregation-transfer-backend": ("mooncake", "nixl", "ascend", "fake"),
}


class Flags(Value):
    """A parsed command line. None: not given. `printed` holds every argument, as `server_args` shows it."""

    model_path: str
    host: str
    port: int
    served_model_name: str | None
    context_length: int | None
    tp_size: int
    dp_size: int
    ep_size: int
    attn_dp_size: int | None
    pp_size: int | None
    enable_dp_attention: bool
    enable_dp_lm_head: bool
    moe_a2a_backend: str
    deepep_mode: str
    mem_fraction_static: float | None
    max_running_requests: int | None
    max_total_tokens: int | None
    chunked_prefill_size: int | None
    max_prefill_tokens: int
    page_size: int | None
    cuda_graph_bs_decode: tuple[int, ...] | None
    cuda_graph_max_bs_decode: int | None
    cuda_graph_backend_decode: str
    disable_cuda_graph: bool
    disable_radix_cache: bool
    enable_hierarchical_cache: bool
    hicache_ratio: float
    disable_overlap_schedule: bool
    speculative_algorithm: str | None
    speculative_num_steps: int | None
    speculative_eagle_topk: int | None
    speculative_num_draft_tokens: int | None
    speculative_dspark_block_size: int | None
    speculative_draft_model_path: str | None
    disaggregation_mode: str
    enable_metrics: bool
    enable_cache_report: bool
    printed: dict[str, Any]


def parse_flags(argv: Sequence[str]) -> Flags:
    """Parse the words after `launch_server`. Raises SystemExit(2) after argparse printed the reason."""
    parsed = vars(_parser().parse_args([_dashed(word) for word in argv]))
    names = set(Flags.model_fields)
    return Flags.model_validate({name: value for name, value in parsed.items() if name in names} | {"printed": parsed})


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launch_server.py", description=__doc__)
    add = parser.add_argument
    add("--model-path", "--model", required=True, help="path of a system file")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000)
    add("--served-model-name", default=None)
    add("--context-length", type=int, default=None)
    add("--tp-size", "--tensor-parallel-size", type=int, default=1)
    add("--dp-size", "--data-parallel-size", type=int, default=1)
    add("--ep-size", "--expert-parallel-size", "--ep", type=int, default=1)
    add("--pp-size", "--pipeline-parallel-size", type=int, default=None)
    add("--attn-dp-size", type=int, default=None)
    add("--moe-a2a-backend", choices=("none", "deepep", "mooncake", "ascend_fuseep", "ascend_tp"), default="none")
    add("--deepep-mode", choices=("auto", "normal", "low_latency"), default="auto")
    add("--fuseep-mode", type=int, choices=(1, 2), default=2, help=_NO_EFFECT)
    add("--mem-fraction-static", type=float, default=None)
    add("--max-running-requests", type=int, default=None)
    add("--max-total-tokens", type=int, default=None)
    add("--chunked-prefill-size", type=int, default=None)
    add("--max-prefill-tokens", type=int, default=16384)
    add("--page-size", type=int, default=None)
    add("--cuda-graph-bs-decode", type=int, nargs="+", default=None)
    add("--cuda-graph-max-bs-decode", type=int, default=None)
    add("--cuda-graph-bs-prefill", type=int, nargs="+", default=None, help=_NO_EFFECT)
    add("--cuda-graph-max-bs-prefill", type=int, default=None, help=_NO_EFFECT)
    add("--cuda-graph-backend-decode", choices=("full", "breakable", "disabled"), default="full")
    add("--hicache-ratio", type=float, default=2.0)
    add("--speculative-algorithm", default=None, type=_algorithm)
    add("--speculative-num-steps", type=int, default=None)
    add("--speculative-eagle-topk", type=int, default=None)
    add("--speculative-num-draft-tokens", type=int, default=None)
    add("--speculative-dspark-block-size", type=int, default=None)
    add("--disaggregation-mode", choices=("null", "prefill", "decode"), default="null")
    for flag in (*_SWITCHES, *_INERT_SWITCHES):
        add(flag, action="store_true")
    for flag in _INERT_NUMBERS:
        add(flag, type=int, default=None, help=_NO_EFFECT)
    for flag in _INERT_SHARES:
        add(flag, type=float, default=None, help=_NO_EFFECT)
    for flag, words in _INERT_CHOICES.items():
        add(flag, choices=words, default=None, help=_NO_EFFECT)
    for flag in _INERT_TEXTS:
        add(flag, default=None, help=_NO_EFFECT)
    return parser


def _algorithm(text: str) -> str:
    """Any spelling: which algorithms there are is checked after the arguments."""
    return text.upper()
