"""A real engine's failures through the whole attempt: what ends it, what is said of it, and that nothing stays behind.

Each log lies in the corpus of the classification tests under the name given here, with what is expected of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from autotune.domain.failure import FailureClass, Phase
from tests.llama.attempts import (
    PATIENT,
    Loaded,
    failure_of,
    llama,
    llama_job,
    said,
    short_requests,
    within,
)
from tests.llama.tiny_model import KV_BYTES_A_TOKEN
from tests.workers.launching import left, run

CORPUS = Path(__file__).parents[1] / "workers" / "failure_logs" / "index.yaml"
LIMIT_BYTES = 4 * 1024**3
BEYOND_LIMIT = str(2 * LIMIT_BYTES // KV_BYTES_A_TOKEN)
DRAFTS_OF_16 = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "1", "--spec-ngram-simple-size-m", "16")


def recorded(name: str) -> dict[str, object]:
    """What the corpus expects of the log of this failure."""
    entry = yaml.safe_load(CORPUS.read_text(encoding="utf-8"))[f"llama-cpp/{name}"]
    return {key: entry[key] for key in ("phase", "exit_code", "class")}


def test_it_is_measured(model: Path, tmp_path: Path) -> None:
    outcome = run(tmp_path, llama_job(), llama(model))
    assert outcome.failure is None, outcome.failure
    assert outcome.measurement is not None
    assert outcome.effective["server"].applied["--threads"] == 1
    assert left(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "flags", "line"),
    [
        ("batch-zero-assert", ["--batch-size", "0"], "GGML_ASSERT("),
        ("slots-beyond-256", ["--parallel", "300"], "n_seq_max must be <= 256"),
        (
            "quantised-v-without-flash",
            ["--cache-type-k", "q8_0", "--cache-type-v", "q8_0", "--flash-attn", "off"],
            "quantized V cache requires flash_attn",
        ),
        ("flag-unknown", ["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        ("flag-value", ["--flash-attn", "maybe"], "argument -fa/--flash-attn: invalid choice: 'maybe'"),
        ("number-beyond-int32", ["--ctx-size", "99999999999"], "value too large to convert to int32_t"),
    ],
)
def test_a_start_that_the_flags_end(name: str, flags: Sequence[str], line: str, model: Path, tmp_path: Path) -> None:
    failure = failure_of(tmp_path, llama_job(*flags), llama(model))
    assert said(failure) == recorded(name)
    assert line in (failure.decisive_line or "")


def test_memory_that_is_not_there(model: Path, tmp_path: Path) -> None:
    template = llama(model, before=within(LIMIT_BYTES))
    failure = failure_of(tmp_path, llama_job("--ctx-size", BEYOND_LIMIT), template)
    assert said(failure) == recorded("context-beyond-host-memory")
    assert "insufficient memory (attempted to allocate 8192.00 MB)" in (failure.decisive_line or "")


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("weights-missing", None, "failed to open GGUF file"),
        ("weights-are-a-pointer", b"version https://git-lfs.github.com/spec/v1\nsize 3\n", "invalid magic characters"),
        ("weights-truncated", 2_000_000, "data is not within the file bounds, model is corrupted or incomplete"),
        ("weights-garbled", 0xFF, "failed to load model from"),
    ],
)
def test_weights_that_cannot_be_read(
    name: str, content: bytes | int | None, line: str, model: Path, tmp_path: Path
) -> None:
    """`content`: all of the file, the number of bytes that are left of it, or a byte that overwrites its names."""
    weights = tmp_path / "weights.gguf"
    whole = model.read_bytes()
    if isinstance(content, bytes):
        weights.write_bytes(content)
    elif content == 0xFF:
        weights.write_bytes(whole[:64] + bytes([content]) * 2_000 + whole[2_064:])
    elif content is not None:
        weights.write_bytes(whole[:content])
    failure = failure_of(tmp_path / "attempts", llama_job(), llama(weights))
    assert said(failure) == recorded(name)
    assert line in (failure.decisive_line or "")


def test_weights_on_a_mount_that_does_not_answer(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to waits for ever, as a dead network mount does."""
    weights = tmp_path / "weights.gguf"
    os.mkfifo(weights)
    failure = failure_of(tmp_path / "attempts", llama_job(), llama(weights, stall_s=2, stop_s=1))
    assert (failure.phase, failure.failure_class, failure.exit_code) == (Phase.READY, FailureClass.HANG, None)
    assert "no new line in the log for 2 s" in failure.summary


def test_drafts_that_outgrow_the_batch_abort_it_with_the_first_requests(model: Path, tmp_path: Path) -> None:
    flags = ("--batch-size", "2", "--parallel", "1", *DRAFTS_OF_16)
    failure = failure_of(tmp_path, llama_job(*flags), llama(model))
    assert failure.phase in {Phase.WARM_UP, Phase.LOAD}
    assert failure.failure_class is FailureClass.CRASH
    assert failure.exit_code == -signal.SIGABRT
    assert "batch must be large enough to hold the sampled and draft tokens" in (failure.decisive_line or "")


def test_requests_beyond_the_context_are_not_measured(model: Path, tmp_path: Path) -> None:
    """The server works, and refuses every request of the load."""
    one = llama_job("--parallel", "64", "--ctx-size", "256", "--no-kv-unified")
    long = one.workload.model_copy(update={"prompt_tokens": 600})
    failure = failure_of(tmp_path, one.model_copy(update={"workload": long}), llama(model))
    assert (failure.phase, failure.failure_class) == (Phase.WARM_UP, FailureClass.REQUEST_ERRORS)
    assert failure.decisive_line == "http_400"


@pytest.mark.parametrize(
    ("name", "number"), [("killed-without-a-word", signal.SIGKILL), ("segfault-without-a-word", signal.SIGSEGV)]
)
def test_death_under_load(name: str, number: signal.Signals, model: Path, tmp_path: Path) -> None:
    with Loaded(tmp_path, llama_job(workload=short_requests()), llama(model)) as attempt:
        os.kill(attempt.server(), number)
        failure = attempt.failure()
    assert said(failure) == recorded(name)
    assert failure.summary == f"server ended with {number.name} in phase load"


def test_a_server_that_stands_still_under_load(model: Path, tmp_path: Path) -> None:
    template = llama(model, token_stall_s=8, stop_s=1)
    with Loaded(tmp_path, llama_job(workload=short_requests()), template) as attempt:
        os.kill(attempt.server(), signal.SIGSTOP)
        failure = attempt.failure()
    assert (failure.phase, failure.failure_class, failure.exit_code) == (Phase.LOAD, FailureClass.HANG, None)
    assert failure.summary == "no token for 8 s"


def test_a_load_that_does_not_end(model: Path, tmp_path: Path) -> None:
    failure = failure_of(tmp_path, llama_job(workload=short_requests()), llama(model, load_s=1))
    assert (failure.phase, failure.failure_class) == (Phase.LOAD, FailureClass.LOAD_TIMEOUT)
    assert failure.summary == "the load did not end within 1 s"


def test_the_limits_of_the_other_tests_are_out_of_reach() -> None:
    assert min(PATIENT.ready_s, PATIENT.stall_s, PATIENT.warm_up_s, PATIENT.load_s) >= 120
