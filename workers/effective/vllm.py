"""vLLM and vllm-ascend: the start-up log of releases 0.18 to 0.23."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.domain.effective import Corrected, Ignored
from autotune.domain.knobs import KnobValue
from workers.effective.asked import ALLOCATOR, fragments, scalar
from workers.effective.reading import Fact, Reading, evidence, log_lines

CAPTURE_SIZES = "--compilation-config cudagraph_capture_sizes"
GRAPH_MODE = "--compilation-config cudagraph_mode"
STATIC_KERNEL = "--additional-config ascend_compilation_config.enable_static_kernel"
CPU_BINDING = "--additional-config enable_cpu_binding"
PAGE_SIZE = f"env {ALLOCATOR}:page_size"
STATIC_KERNEL_MODES = ("FULL", "FULL_DECODE_ONLY")

_CONFIG = re.compile(r"^Initializing an? (V1 )?LLM engine .*with config:")
_PRINTED: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("--max-model-len", re.compile(r"\bmax_seq_len=(\d+)")),
    ("--tensor-parallel-size", re.compile(r"\btensor_parallel_size=(\d+)")),
    ("--pipeline-parallel-size", re.compile(r"\bpipeline_parallel_size=(\d+)")),
    ("--speculative-config num_speculative_tokens", re.compile(r"\bnum_spec_tokens=(\d+)")),
    (GRAPH_MODE, re.compile(r"'cudagraph_mode': <CUDAGraphMode\.(\w+)")),
)
_SIZES = re.compile(r"'cudagraph_capture_sizes': \[([\d, ]*)\]")
_UNKNOWN_ENV = re.compile(r"Unknown vLLM environment variable detected: (\w+)")
_FROM_CONFIG = re.compile(r"AscendConfig\.(\w+) is set from additional_config with value (.*?)\.?\s*$")
_FROM_ENV = re.compile(r"AscendConfig\.\w+ falls back to environment variable (\w+) with value (\S+?)\.?(?:\s|$)")
_ALLOCATOR = re.compile(rf"Set {ALLOCATOR}=(\S+)")
_TRUNCATED = re.compile(r"Truncating max_cudagraph_capture_size(?: to (\d+)|\..*truncated_size=(\d+))")
_NO_LARGE_PAGES = re.compile(r"(application for|malloc) 1G large-page physical memory failed")
_SWITCHED_OFF = re.compile(r"(\w+) setting failure.*now change to `?False`?")
_NO_GRAPHS = re.compile(r"cudagraph_mode is not support on NPU\. falling back to NONE")
_NOT_BOUND = re.compile(r"Bind cpus failed in rank|Insufficient CPUs for binding|The number of CPUs is insufficient")
_STATIC = "static shape kernel will be used to accelerate aclgraph execution"


def read(text: str) -> Reading:
    """Total and pure. The first line of a kind counts: ranks and workers repeat it."""
    facts: dict[str, Fact] = {}
    ignored: dict[str, Ignored] = {}
    corrected: dict[str, Corrected] = {}
    speaks = False
    for line in log_lines(text):
        if _CONFIG.search(line):
            speaks = True
            _keep(facts, _configuration(line))
        elif match := _UNKNOWN_ENV.search(line):
            # vLLM does not know the names of its platform either: its warning says nothing about those.
            if not match[1].startswith("VLLM_ASCEND_"):
                ignored.setdefault(match[1], Ignored(setting=f"env {match[1]}", line=evidence(line)))
        elif match := _FROM_CONFIG.search(line):
            if not match[2].startswith(("{", "[")):  # a plan's objects are compared key by key
                _keep(facts, [(f"--additional-config {match[1]}", scalar(match[2]), line)])
        elif match := _FROM_ENV.search(line):
            _keep(facts, [(f"env {match[1]}", scalar(match[2]), line)])
        elif match := _ALLOCATOR.search(line):
            _keep(facts, [(f"env {ALLOCATOR}:{k}", v, line) for k, v in fragments(match[1]).items()])
        elif _STATIC in line:
            _keep(facts, [(STATIC_KERNEL, True, line)])
        elif change := _correction(line):
            corrected.setdefault(change.setting, change)
    return Reading(facts, tuple(ignored.values()), tuple(corrected.values()), speaks)


def static_kernel_off(reading: Reading) -> Corrected | None:
    """The platform switches static kernels off beside piecewise graphs without a word; None where it did not."""
    mode = reading.facts.get(GRAPH_MODE)
    if mode is None or STATIC_KERNEL in reading.facts or mode.value in STATIC_KERNEL_MODES:
        return None
    return Corrected(setting=STATIC_KERNEL, got=False, line=mode.line)


def _correction(line: str) -> Corrected | None:
    setting: str
    got: KnobValue = False
    if match := _TRUNCATED.search(line):
        setting, got = "--compilation-config max_cudagraph_capture_size", scalar(match[1] or match[2])
    elif _NO_LARGE_PAGES.search(line):
        setting, got = PAGE_SIZE, "2m"
    elif match := _SWITCHED_OFF.search(line):
        setting = f"env {ALLOCATOR}:{match[1]}"
    elif _NO_GRAPHS.search(line):
        setting, got = GRAPH_MODE, "NONE"
    elif _NOT_BOUND.search(line):
        setting = CPU_BINDING
    else:
        return None
    return Corrected(setting=setting, got=got, line=evidence(line))


def _configuration(line: str) -> list[tuple[str, KnobValue, str]]:
    found: list[tuple[str, KnobValue, str]] = []
    for setting, pattern in _PRINTED:
        if match := pattern.search(line):
            found.append((setting, scalar(match[1]), match[0]))
    if match := _SIZES.search(line):
        found.append((CAPTURE_SIZES, tuple(int(s) for s in match[1].split(",") if s.strip().isdecimal()), match[0]))
    return found


def _keep(facts: dict[str, Fact], found: Iterable[tuple[str, KnobValue, str]]) -> None:
    for setting, value, words in found:
        facts.setdefault(setting, Fact(value, evidence(words)))
