"""Failure classification: the catalogue's own samples, whole logs, and any text at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.failure import FailureClass, Phase
from workers.failures.classify import LONGEST_DECISIVE, classify, describe_exit
from workers.failures.signatures import Signature, catalogue

LOGS = Path(__file__).with_name("logs")
INDEX: dict[str, list[Any]] = yaml.safe_load((LOGS / "index.yaml").read_text())
SAMPLES = [(signature, sample) for signature in catalogue().signatures for sample in signature.samples]
FRAGMENTS = [sample for _, sample in SAMPLES] + ["", "ValueError: x", "INFO x", "error: y", "\x00", "\r", "usage: z"]


@pytest.mark.parametrize(("signature", "sample"), SAMPLES, ids=[f"{s.name}: {t[:40]}" for s, t in SAMPLES])
def test_every_sample_is_classified_as_its_own_signature(signature: Signature, sample: str) -> None:
    engine = signature.engines[0] if signature.engines else "vllm-ascend"
    finding = classify(Phase.READY, 1, f"INFO all is well\n{sample}\nINFO bye", engine)
    assert finding.failure_class is signature.failure_class
    assert finding.line == sample.strip()[:LONGEST_DECISIVE]
    assert finding.signature == signature.name


@pytest.mark.parametrize("name", INDEX)
def test_whole_logs(name: str) -> None:
    engine, phase, exit_code, expected, part = INDEX[name]
    text = (LOGS / f"{name}.txt").read_text()
    finding = classify(Phase(phase), exit_code, text, engine)
    assert finding.failure_class is FailureClass(expected), finding
    assert part is None or part in (finding.line or "")


def test_every_log_is_in_the_index() -> None:
    assert {path.stem for path in LOGS.glob("*.txt")} == INDEX.keys()


def test_no_signature_is_named_twice() -> None:
    names = [signature.name for signature in catalogue().signatures]
    assert len(set(names)) == len(names)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(Phase),
    st.none() | st.integers(-70, 300) | st.integers(),
    st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=60).map(lambda b: b.decode("utf-8", "replace"))),
    st.sampled_from(["vllm-ascend", "llama-cpp", "sglang-ascend", "", "unknown"]),
)
def test_any_text_in_any_phase_has_a_class_and_always_the_same(
    phase: Phase, exit_code: int | None, lines: list[str], engine: str
) -> None:
    text = "\n".join(lines)
    finding = classify(phase, exit_code, text, engine)
    assert isinstance(finding.failure_class, FailureClass)
    assert len(finding.line or "") <= LONGEST_DECISIVE
    assert classify(phase, exit_code, text, engine) == finding


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([s for s in SAMPLES if not s[0].weak and not s[0].engines]), st.data())
def test_wrappers_and_reports_around_a_root_cause_change_nothing(
    chosen: tuple[Signature, str], data: st.DataObject
) -> None:
    signature, sample = chosen
    noise = st.lists(
        st.sampled_from(
            [
                "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
                "(EngineCore pid=1) ERROR 11-20 10:12:24 [core.py:708] EngineCore failed to start.",
                "INFO 11-20 10:12:24 [x.py:1] EI0006 HCCL_BUFFSIZE is too SMALL NPU out of memory. Tried to allocate",
                'INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 400 Bad Request',
                "# HELP vllm:x EZ9999",
            ]
        )
    )
    lines = [*data.draw(noise), sample, *data.draw(noise)]
    assert classify(Phase.READY, 1, "\n".join(lines), "vllm-ascend").signature == signature.name


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.READY, FailureClass.START_TIMEOUT),
        (Phase.WARM_UP, FailureClass.LOAD_TIMEOUT),
        (Phase.LOAD, FailureClass.LOAD_TIMEOUT),
        (Phase.STOP, FailureClass.INFRASTRUCTURE),
    ],
)
def test_a_silent_server_that_lives_has_run_out_of_time(phase: Phase, expected: FailureClass) -> None:
    assert classify(phase, None, "", "vllm-ascend") == (expected, None, None)


@pytest.mark.parametrize("code", [-9, 137])
def test_a_kill_without_a_word_is_a_crash_in_either_spelling(code: int) -> None:
    finding = classify(Phase.LOAD, code, "", "vllm-ascend")
    assert finding == (FailureClass.CRASH, "the server was ended by SIGKILL", None)
    assert describe_exit(code) == "SIGKILL"


def test_words_of_a_bad_request_decide_nothing_once_the_server_is_ready() -> None:
    text = "ValueError: 1 validation error for CompletionRequest"
    assert classify(Phase.READY, 1, text, "vllm-ascend").failure_class is FailureClass.INVALID_CONFIG
    assert classify(Phase.LOAD, 1, text, "vllm-ascend").failure_class is FailureClass.CRASH


def test_an_unknown_check_of_the_configuration_is_recognised_by_its_exception() -> None:
    text = "Traceback (most recent call last):\nTypeError: unexpected shape of 7"
    assert classify(Phase.READY, 1, text, "vllm-ascend").failure_class is FailureClass.INVALID_CONFIG
    assert classify(Phase.LOAD, 1, text, "vllm-ascend") == (
        FailureClass.CRASH,
        "TypeError: unexpected shape of 7",
        None,
    )


def test_exit_code_2_needs_the_words_of_an_argument_parser() -> None:
    assert classify(Phase.READY, 2, "python: can't open file 'x.py'", "").failure_class is FailureClass.CRASH


def test_another_engines_words_are_not_looked_for() -> None:
    text = "RuntimeError: Failed to init server, please check the input params."
    assert classify(Phase.READY, 1, text, "vllm-ascend").failure_class is FailureClass.CRASH


def test_a_very_long_line_is_read_from_its_beginning() -> None:
    finding = classify(Phase.READY, 1, "error code is 507035 " + "x" * 1_000_000, "vllm-ascend")
    assert finding.failure_class is FailureClass.DEVICE
    assert finding.line is not None
    assert len(finding.line) == LONGEST_DECISIVE


def test_the_same_failure_reads_the_same_in_each_launch() -> None:
    first = "(Worker_TP0 pid=77) ERROR 11-20 12:31:40 [multiproc_executor.py:671] RuntimeError: error code is 507035"
    second = "(Worker_TP0 pid=912) ERROR 11-21 02:00:01 [multiproc_executor.py:671] RuntimeError: error code is 507035"
    lines = {classify(Phase.LOAD, 1, text, "vllm-ascend").line for text in (first, second)}
    assert lines == {"RuntimeError: error code is 507035"}


def test_a_full_device_blames_its_neighbours_and_an_empty_one_the_candidate() -> None:
    text = (
        "Free memory on device ({}/60.96 GiB) on startup is less than desired GPU memory utilization (0.99, 60.35 GiB)"
    )
    assert classify(Phase.READY, 1, text.format("8.00"), "").failure_class is FailureClass.INFRASTRUCTURE
    assert classify(Phase.READY, 1, text.format("59.80"), "").failure_class is FailureClass.OUT_OF_MEMORY
    assert classify(Phase.READY, 1, text.format("1.2.3"), "").failure_class is FailureClass.INFRASTRUCTURE


def test_llama_cpp_lines_are_read_without_their_clock_and_its_reports_are_no_evidence() -> None:
    text = "0.00.100.200 I GGML_ASSERT(x) failed\n0.00.569.081 E llama_init: n_seq_max must be <= 256"
    assert classify(Phase.READY, 1, text, "llama-cpp").line == "llama_init: n_seq_max must be <= 256"
