"""Failure classification: the catalogue's own samples, whole logs, and any text at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.failure import Bound, FailureClass, Phase, RetryPolicy
from workers.failures.classify import LONGEST_DECISIVE, Finding, classify, describe_exit
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
    st.none() | st.integers(),
    st.none() | st.floats(),
)
def test_any_text_in_any_phase_has_a_class_and_always_the_same(
    phase: Phase,
    exit_code: int | None,
    lines: list[str],
    engine: str,
    oom_kills: int | None,
    silence_s: float | None,
) -> None:
    logs = ["\n".join(lines[:3]), "\n".join(lines[3:])]
    finding = classify(phase, exit_code, logs, engine, oom_kills=oom_kills, silence_s=silence_s)
    assert isinstance(finding.failure_class, FailureClass)
    assert isinstance(finding.retry, RetryPolicy)
    assert len(finding.line or "") <= LONGEST_DECISIVE
    assert classify(phase, exit_code, logs, engine, oom_kills=oom_kills, silence_s=silence_s) == finding


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
    assert classify(phase, None, "", "vllm-ascend") == Finding(expected)


@pytest.mark.parametrize("code", [-9, 137])
def test_a_kill_without_a_word_is_a_crash_in_either_spelling(code: int) -> None:
    finding = classify(Phase.LOAD, code, "", "vllm-ascend")
    assert finding == Finding(FailureClass.CRASH, "the server was ended by SIGKILL")
    assert finding.retry is RetryPolicy.ONCE
    assert describe_exit(code) == "SIGKILL"


def test_words_of_a_bad_request_decide_nothing_once_the_server_is_ready() -> None:
    text = "ValueError: 1 validation error for CompletionRequest"
    assert classify(Phase.READY, 1, text, "vllm-ascend").failure_class is FailureClass.INVALID_CONFIG
    assert classify(Phase.LOAD, 1, text, "vllm-ascend").failure_class is FailureClass.CRASH


def test_an_unknown_check_of_the_configuration_is_recognised_by_its_exception() -> None:
    text = "Traceback (most recent call last):\nTypeError: unexpected shape of 7"
    assert classify(Phase.READY, 1, text, "vllm-ascend").failure_class is FailureClass.INVALID_CONFIG
    late = classify(Phase.LOAD, 1, text, "vllm-ascend")
    assert late == Finding(FailureClass.CRASH, "TypeError: unexpected shape of 7", policy=RetryPolicy.NEVER)


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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("error code is 507035", FailureClass.DEVICE),
        ("rtKernelLaunch failed: 507014", FailureClass.DEVICE),
        ("ErrCode=107030, desc=[x]", FailureClass.GRAPH_CAPTURE),
        ("runtime result = 207005[FUNC:x]", FailureClass.GRAPH_CAPTURE),
        ("open device 1 failed, runtime result = 107001.", FailureClass.INFRASTRUCTURE),
        ("NPU function error: x, error code is 507055", FailureClass.INFRASTRUCTURE),
        ("error code is 507057", FailureClass.COMMUNICATION),
        ("NPU function error: call x failed, error no is 561103", FailureClass.UNSUPPORTED_OPERATOR),
        ("error code is 207018", FailureClass.OUT_OF_MEMORY),
        ("error code is 999999", FailureClass.CRASH),
        ("took 507035 steps", FailureClass.CRASH),
    ],
)
def test_a_code_of_the_runtime_is_read_in_each_spelling(line: str, expected: FailureClass) -> None:
    assert classify(Phase.LOAD, 1, f"RuntimeError: {line}", "vllm-ascend").failure_class is expected


def test_numbers_that_the_engine_names_are_values_with_a_direction() -> None:
    text = (
        "HCCL_BUFFSIZE is too SMALL, maxBs = 64, NEEDED_HCCL_BUFFSIZE(((a * b = 3) + 2)) = 600MB, HCCL_BUFFSIZE=256MB."
    )
    needed, given_ = classify(Phase.WARM_UP, 1, text, "vllm-ascend").values
    assert (needed.value, needed.unit, needed.bound, needed.setting) == (600, "MB", Bound.AT_LEAST, "HCCL_BUFFSIZE")
    assert (given_.value, given_.bound) == (256, None)
    kv = (
        "ValueError: To serve at least one request with the model's max seq len (262144), (24.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the "
        "estimated maximum model length is 34736."
    )
    values = {v.name: v for v in classify(Phase.READY, 1, kv, "vllm").values}
    assert (values["maximum"].value, values["maximum"].bound) == (34736, Bound.AT_MOST)
    assert values["maximum"].setting == "--max-model-len"
    assert (values["needed"].value, values["available"].value) == (24, 3.18)


def test_a_number_without_end_is_no_value() -> None:
    text = "NPU out of memory. Tried to allocate " + "9" * 1000 + " GiB"
    assert classify(Phase.READY, 1, text, "vllm-ascend").values == ()


def test_the_kernels_counter_tells_a_kill_for_memory_from_another() -> None:
    assert classify(Phase.READY, -9, "", "vllm", oom_kills=0).failure_class is FailureClass.CRASH
    assert classify(Phase.READY, -9, "", "vllm", oom_kills=2).failure_class is FailureClass.HOST_OUT_OF_MEMORY
    known = classify(Phase.READY, -9, "NPU out of memory. Tried to allocate 2.00 GiB", "vllm-ascend", oom_kills=2)
    assert known.failure_class is FailureClass.OUT_OF_MEMORY


def test_a_silence_that_is_too_long_is_a_hang() -> None:
    assert classify(Phase.READY, None, "", "vllm", silence_s=300).failure_class is FailureClass.HANG
    assert classify(Phase.READY, 1, "", "vllm", silence_s=300).failure_class is FailureClass.CRASH


@pytest.mark.parametrize("words", ["ValueError: no block of 7", "NotImplementedError: sizes of 7"])
def test_words_of_the_engines_own_reject_a_configuration_after_loading_too(words: str) -> None:
    text = f"Loading safetensors checkpoint shards: 100% Completed\n{words}"
    assert classify(Phase.READY, 1, text, "vllm").failure_class is FailureClass.INVALID_CONFIG


@pytest.mark.parametrize(
    "words", ["AssertionError", "TypeError: 'NoneType' object", "ValueError: not enough values to unpack"]
)
def test_pythons_own_words_after_loading_are_a_bug_that_comes_again(words: str) -> None:
    before = classify(Phase.READY, 1, words, "vllm")
    after = classify(Phase.READY, 1, f"Loading safetensors checkpoint shards: 100% Completed\n{words}", "vllm")
    assert before.failure_class is FailureClass.INVALID_CONFIG
    assert (after.failure_class, after.retry) == (FailureClass.CRASH, RetryPolicy.NEVER)


def test_what_an_engine_says_while_it_ends_in_order_is_a_consequence() -> None:
    text = "INFO:     Shutting down\nRuntimeError: error code is 507035"
    assert classify(Phase.LOAD, -15, text, "vllm-ascend").failure_class is FailureClass.INFRASTRUCTURE
    assert classify(Phase.LOAD, 1, text, "vllm-ascend").failure_class is FailureClass.DEVICE


def test_each_role_has_its_own_end_and_its_own_loading() -> None:
    logs = ["Loading safetensors checkpoint shards: 1\nINFO:     Shutting down", "RuntimeError: error code is 507035"]
    assert classify(Phase.LOAD, -15, logs, "vllm-ascend").failure_class is FailureClass.DEVICE
    early = ["Loading safetensors checkpoint shards: 1", "TypeError: x"]
    assert classify(Phase.READY, 1, early, "vllm-ascend").failure_class is FailureClass.INVALID_CONFIG


def test_every_class_has_a_page() -> None:
    pages = catalogue().classes
    assert pages.keys() == set(FailureClass)
    for failure_class, page in pages.items():
        assert (page.retry is RetryPolicy.ELSEWHERE) is not failure_class.blames_candidate
