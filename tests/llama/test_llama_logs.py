"""Logs of real failures of llama.cpp with SmolLM2, and what the catalogue makes of them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from autotune.domain.failure import FailureClass, Phase
from workers.failures.classify import classify

LOGS = Path(__file__).with_name("logs")
ABORT = -signal.SIGABRT

CASES = [
    ("quantised_values_without_flash_attention", Phase.READY, 1, FailureClass.INVALID_CONFIG, "quantized V cache"),
    ("too_many_slots", Phase.READY, 1, FailureClass.INVALID_CONFIG, "n_seq_max must be <= 256"),
    ("refused_flag", Phase.READY, 2, FailureClass.INVALID_CONFIG, "invalid choice: 'q4_K'"),
    ("batch_below_slots", Phase.READY, ABORT, FailureClass.CRASH, "GGML_ASSERT(n_outputs_max"),
    ("batch_below_drafts", Phase.LOAD, ABORT, FailureClass.CRASH, "batch must be large enough"),
    ("context_beyond_memory", Phase.READY, 1, FailureClass.HOST_OUT_OF_MEMORY, "insufficient memory"),
    ("port_taken", Phase.READY, 1, FailureClass.INFRASTRUCTURE, "couldn't bind HTTP server socket"),
    ("model_absent", Phase.READY, 1, FailureClass.INFRASTRUCTURE, "failed to open GGUF file"),
]


def test_every_log_has_a_case() -> None:
    assert {path.stem for path in LOGS.iterdir()} == {case[0] for case in CASES}


@pytest.mark.parametrize(("name", "phase", "code", "expected", "decisive"), CASES)
def test_class_and_decisive_line(name: str, phase: Phase, code: int, expected: FailureClass, decisive: str) -> None:
    text = (LOGS / f"{name}.txt").read_text(encoding="utf-8")
    finding = classify(phase, code, text, "llama-cpp")
    assert finding.failure_class is expected
    assert decisive in (finding.line or "")
