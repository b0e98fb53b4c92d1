"""Start-up logs of the engines, read and compared with launch plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.effective import Corrected, EffectiveConfig, Ignored
from autotune.domain.knobs import KnobValue
from autotune.domain.launch_plan import RolePlan
from workers.effective.asked import asked_settings, same
from workers.effective.compare import effective
from workers.effective.vllm import CAPTURE_SIZES, CPU_BINDING, GRAPH_MODE, PAGE_SIZE, STATIC_KERNEL

LOGS = Path(__file__).with_name("effective_logs")
VLLM = (LOGS / "vllm-ascend.txt").read_text()
SGLANG = (LOGS / "sglang.txt").read_text()
PRELOAD = "ERROR: ld.so: object '/lib/je.so' from LD_PRELOAD cannot be preloaded (file too short): ignored."
MAX_SIZE = "--compilation-config max_cudagraph_capture_size"


def plan(*argv: str, **fields: Any) -> RolePlan:
    return RolePlan(argv=argv, **fields)


def compilation(**content: Any) -> tuple[str, str]:
    return "--compilation-config", json.dumps(content)


def test_what_vllm_prints_is_read() -> None:
    found = effective("vllm-ascend", plan(), VLLM)
    assert found.applied == {
        "env PYTORCH_NPU_ALLOC_CONF:page_size": "1g",
        "env PYTORCH_NPU_ALLOC_CONF:expandable_segments": True,
        "env VLLM_ASCEND_ENABLE_FLASHCOMM1": 0,
        "--additional-config weight_nz_mode": 1,
        "--max-model-len": 4096,
        "--tensor-parallel-size": 2,
        "--pipeline-parallel-size": 1,
        "--speculative-config num_speculative_tokens": 3,
        GRAPH_MODE: "FULL_DECODE_ONLY",
        CAPTURE_SIZES: (4, 16, 32),
        STATIC_KERNEL: True,
    }
    assert found.ignored == ()
    assert found.corrected == ()
    assert EffectiveConfig.model_validate_json(found.model_dump_json()) == found


def test_a_plan_that_runs_as_asked_has_nothing_to_report() -> None:
    asked = plan(
        *compilation(cudagraph_mode="full_decode_only", cudagraph_capture_sizes=[32, 4, 16]),
        *("--max-model-len", "4096", "--tensor_parallel_size=2", "--additional-config", '{"weight_nz_mode":1}'),
        *("--speculative-config", '{"method":"mtp","num_speculative_tokens":3}'),
        env={"PYTORCH_NPU_ALLOC_CONF": "page_size:1g", "VLLM_ASCEND_ENABLE_FLASHCOMM1": "0"},
        proofs={STATIC_KERNEL: "static shape kernel will be used"},
    )
    found = effective("vllm-ascend", asked, VLLM)
    assert (found.ignored, found.corrected, found.unproven) == ((), (), ())


def test_values_that_the_engine_replaced_are_named_with_what_was_asked() -> None:
    asked = plan(*compilation(cudagraph_mode="FULL", cudagraph_capture_sizes=[4, 17]), "--max-model-len", "8192")
    found = {c.setting: (c.asked, c.got) for c in effective("vllm-ascend", asked, VLLM).corrected}
    assert found == {
        GRAPH_MODE: ("FULL", "FULL_DECODE_ONLY"),
        CAPTURE_SIZES: ((4, 17), (4, 16, 32)),
        "--max-model-len": (8192, 4096),
    }


@pytest.mark.parametrize(
    ("line", "setting", "got"),
    [
        ("(APIServer pid=1) WARNING 07-05 08:51:36 [vllm.py:1719] Truncating max_cudagraph_capture_size to 96",) * 1
        + (MAX_SIZE, 96),
        ("Truncating max_cudagraph_capture_size. original_size=100, truncated_size=96. The rest", MAX_SIZE, 96),
        ("[W1] Warning: The application for 1G large-page physical memory failed. Using ...", PAGE_SIZE, "2m"),
        ("[W1] Warning: The malloc 1G large-page physical memory failed, so malloc 2M page memory.", PAGE_SIZE, "2m"),
        ("FULL cudagraph_mode is not support on NPU. falling back to NONE", GRAPH_MODE, "NONE"),
        (
            "pinned_mem_register setting failure, this feature is not supported, now change to `False`.",
            "env PYTORCH_NPU_ALLOC_CONF:pinned_mem_register",
            False,
        ),
        ("Bind cpus failed in rank0: too few CPUs. Skip binding cpu.", CPU_BINDING, False),
        ("Insufficient CPUs for binding", CPU_BINDING, False),
    ],
)
def test_corrections_that_are_announced_are_recorded_for_any_plan(line: str, setting: str, got: KnobValue) -> None:
    (change,) = effective("vllm-ascend", plan(), f"INFO fine\n{line}\n{line}\n").corrected
    assert (change.setting, change.asked, change.got) == (setting, None, got)
    assert change.line in line
    assert not change.line.startswith("(")


def test_a_truncated_largest_size_is_compared_with_the_list_that_was_asked() -> None:
    line = "Truncating max_cudagraph_capture_size to 8"
    asked = plan(*compilation(cudagraph_capture_sizes=[4, 9]))
    assert effective("vllm", asked, line).corrected == (Corrected(setting=MAX_SIZE, asked=9, got=8, line=line),)
    assert effective("vllm", plan(*compilation(cudagraph_capture_sizes=[8])), line).corrected == ()


def test_an_unknown_variable_counts_only_where_the_plan_sets_it() -> None:
    line = "Unknown vLLM environment variable detected: VLLM_FOO"
    asked = plan(env={"VLLM_FOO": "1"})
    assert effective("vllm-ascend", asked, line).ignored == (Ignored(setting="env VLLM_FOO", line=line),)
    assert effective("vllm-ascend", plan(), line).ignored == ()
    assert effective("llama-cpp", asked, line).ignored == ()


def test_vllm_does_not_know_the_names_of_its_platform() -> None:
    line = "Unknown vLLM environment variable detected: VLLM_ASCEND_ENABLE_NZ"
    assert effective("vllm-ascend", plan(env={"VLLM_ASCEND_ENABLE_NZ": "1"}), line).ignored == ()


def test_values_in_other_spellings_are_no_corrections() -> None:
    log = VLLM + (
        "INFO AscendConfig.layer_sharding is set from additional_config with value ['q_b_proj', 'o_proj'].\n"
        "INFO AscendConfig.x falls back to environment variable VLLM_ASCEND_X with value 0.5. The rest\n"
    )
    additional = '{"layer_sharding":["q_b_proj","o_proj"],"weight_nz_mode":true}'
    asked = plan("--max-model-len", "4k", "--additional-config", additional, env={"VLLM_ASCEND_X": "0.5"})
    found = effective("vllm-ascend", asked, log)
    assert found.corrected == ()
    assert found.applied["env VLLM_ASCEND_X"] == 0.5


@pytest.mark.parametrize("engine", ["vllm-ascend", "sglang-ascend", "llama-cpp", "another"])
def test_a_library_that_the_linker_left_out_counts_where_the_plan_asks_for_it(engine: str) -> None:
    asked = plan(preload=("jemalloc",))
    found = effective(engine, asked, PRELOAD, libraries={"jemalloc": "/lib/je.so"})
    assert found.ignored == (Ignored(setting="LD_PRELOAD", line=PRELOAD),)
    assert effective(engine, asked, PRELOAD, libraries={"jemalloc": "/lib/other.so"}).ignored == ()


def test_static_kernels_beside_piecewise_graphs_are_switched_off_without_a_word() -> None:
    log = VLLM.replace("FULL_DECODE_ONLY: (2, 0)", "PIECEWISE: 1").replace("static shape kernel", "")
    flags = ("--additional-config", '{"ascend_compilation_config":{"enable_static_kernel":true}}')
    proofs = {STATIC_KERNEL: "static shape kernel will be used"}
    found = effective("vllm-ascend", plan(*flags, proofs=proofs), log)
    assert [(c.setting, c.asked, c.got) for c in found.corrected] == [(STATIC_KERNEL, True, False)]
    assert found.ignored == ()
    in_vain = effective("vllm-ascend", plan(*flags, proofs=proofs), VLLM.replace("static shape kernel", ""))
    assert in_vain.ignored == (Ignored(setting=STATIC_KERNEL),)


def test_the_echo_of_the_arguments_is_no_proof() -> None:
    asked = plan(proofs={"--additional-config enable_foo": "enable_foo"})
    log = f"{VLLM}\nINFO 07-05 08:51:34 [utils.py:278] non-default args: {{'additional_config': {{'enable_foo': 1}}}}"
    assert effective("vllm-ascend", asked, log).ignored == (Ignored(setting="--additional-config enable_foo"),)


@pytest.mark.parametrize(("log", "whole"), [("a server without a log\n", True), (VLLM, False)])
def test_a_log_that_cannot_tell_condemns_nobody(log: str, whole: bool) -> None:
    found = effective("vllm-ascend", plan(proofs={"env X": "in effect"}), log, whole=whole)
    assert (found.ignored, found.unproven) == ((), ("env X",))


def test_sglang_prints_its_arguments_and_answers_for_them() -> None:
    asked = plan("--tp", "2", "--cuda-graph-bs-decode", "1", "2", "8", "--page-size", "64", "--enable-dp-attention")
    printed = {c.setting: (c.asked, c.got) for c in effective("sglang-ascend", asked, SGLANG).corrected}
    assert printed == {"--page-size": (64, 128), "--enable-dp-attention": (True, False)}
    info = {"page_size": 64, "enable_dp_attention": True, "tp_size": 2, "internal_states": [{}], "x": float("nan")}
    assert effective("sglang-ascend", asked, SGLANG, info).corrected == ()
    draft = plan("--speculative-algorithm", "NEXTN")
    assert effective("sglang-ascend", draft, "", {"speculative_algorithm": "EAGLE"}).corrected == ()


def test_an_engines_own_choice_is_no_correction() -> None:
    asked = plan("--page-size", "-1", "--quantization", "auto")
    assert effective("sglang-ascend", asked, SGLANG, {"quantization": "w8a8"}).corrected == ()


def test_llama_cpp_slots_threads_and_context() -> None:
    log = (LOGS / "llama-rounded.txt").read_text()
    asked = plan("--parallel", "3", "--ctx-size", "1000", "--threads", "1")
    found = effective("llama-cpp", asked, log)
    assert found.applied == {
        "--threads": 1,
        "--parallel": 3,
        "--ctx-size": 1536,
        "--kv-unified": False,
        "--no-kv-unified": True,
    }
    (change,) = found.corrected
    assert (change.setting, change.asked, change.got) == ("--ctx-size", 1000, 1536)
    assert change.line == "llama_context: n_ctx is not divisible by n_seq_max - rounding down to 1536"
    capped = effective("llama-cpp", plan("--ctx-size", "99999"), (LOGS / "llama-capped.txt").read_text())
    assert [(c.got, "capping" in c.line) for c in capped.corrected] == [(8192, True)]


def test_plans_are_read_as_engines_read_them() -> None:
    asked = asked_settings(
        plan(
            *("--a", "1", "--a=2", "--b_c", "x", "y", "--on", "--num", "-1", "-np", "3", "--json", '{"a":{"b":[1]}}'),
            *("--broken", "{", "--no", "None"),
            env={"X": "true", "PYTORCH_NPU_ALLOC_CONF": "a:True,b:1g"},
            preload=("je",),
        )
    )
    assert asked == {
        "--a": 2,
        "--b-c": ("x", "y"),
        "--on": True,
        "--num": -1,
        "-np": 3,
        "--json a.b": (1,),
        "--broken": "{",
        "--no": None,
        "env X": True,
        "env PYTORCH_NPU_ALLOC_CONF:a": True,
        "env PYTORCH_NPU_ALLOC_CONF:b": "1g",
        "LD_PRELOAD": "je",
    }
    assert same(True, 1)
    assert same((1, 2), (2, 1))
    assert not same("a", 1)


PIECES = [
    *VLLM.splitlines(),
    *SGLANG.splitlines(),
    PRELOAD,
    "",
    "\x00",
    "\r",
    "with config: ",
    "server_args=ServerArgs(",
]
PLANS = [
    plan(),
    plan(
        *compilation(cudagraph_mode="FULL", cudagraph_capture_sizes=[1, 2]),
        *("--additional-config", '{"ascend_compilation_config":{"enable_static_kernel":true}}', "--ctx-size", "7"),
        env={"VLLM_FOO": "1", "PYTORCH_NPU_ALLOC_CONF": "page_size:1g"},
        proofs={"env VLLM_FOO": "foo"},
    ),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["vllm-ascend", "sglang-ascend", "llama-cpp", "", "unknown"]),
    st.sampled_from(PLANS),
    st.lists(st.sampled_from(PIECES) | st.binary(max_size=60).map(lambda b: b.decode("utf-8", "replace")), max_size=8),
    st.none() | st.dictionaries(st.sampled_from(["tp_size", "page_size"]) | st.text(max_size=6), JSON, max_size=4),
)
def test_any_text_and_any_answer_give_a_configuration(
    engine: str, asked: RolePlan, lines: list[str], info: dict[str, Any] | None
) -> None:
    found = effective(engine, asked, "\n".join(lines), info)
    assert EffectiveConfig.model_validate_json(found.model_dump_json()) == found
    assert effective(engine, asked, "\n".join(lines), info) == found


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(max_size=12) | st.sampled_from(["--a", "--b=1", "{", '{"a":1e999}', "-1", "-"]), max_size=6))
def test_any_plan_is_read(argv: list[str]) -> None:
    asked_settings(plan(*argv, env={"PYTORCH_NPU_ALLOC_CONF": ",".join(argv)}))


def test_a_constant_that_no_process_has_set_is_a_setting_that_was_not_read() -> None:
    asked = plan(constants={"vllm_ascend.ops.prefetch:THRESHOLD": 1})
    name = "constant vllm_ascend.ops.prefetch:THRESHOLD"
    assert effective("vllm-ascend", asked, VLLM).ignored == (Ignored(setting=name),)
    proof = "autotune: set vllm_ascend.ops.prefetch:THRESHOLD from 96 to 1"
    assert effective("vllm-ascend", asked, f"{VLLM}\n{proof}").ignored == ()
    assert effective("vllm-ascend", asked, VLLM, whole=False).ignored == ()
