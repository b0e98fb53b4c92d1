"""SGLang's front end: what it takes, what it refuses, and what it makes of it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.domain.failure import FailureClass, Phase
from autotune.domain.launch_plan import RolePlan
from workers.effective.compare import effective
from workers.failures.classify import classify
from workers.simulator.boot import read_command
from workers.simulator.faults import ConfigRejected, EngineFailed
from workers.simulator.model.settings import GraphMode, Role, ServingConfig
from workers.simulator.model.system import load_system
from workers.simulator.sglang.configure import configure
from workers.simulator.sglang.flags import parse_flags
from workers.simulator.start.booting import NotStarted

SYSTEM_FILE = Path(__file__).parents[2] / "workers/simulator/systems/deepseek-950dt.yaml"
SYSTEM = load_system(SYSTEM_FILE)
BASE = ("--model-path", str(SYSTEM_FILE), "--tp-size", "8")
DSPARK = ("--speculative-algorithm", "DSPARK", "--speculative-dspark-block-size", "6")
DEEPEP = ("--moe-a2a-backend", "deepep", "--deepep-mode", "low_latency")


def configured(*argv: str, env: Mapping[str, str] | None = None) -> ServingConfig:
    return configure(parse_flags([*BASE, *argv]), env or {}, [], SYSTEM)


def started(*argv: str, env: Mapping[str, str] | None = None) -> tuple[int | None, str]:
    """Exit status of the start (None: ready) and the log."""
    log = io.StringIO()
    boot = read_command(["launch_server", *BASE, *argv], env or {}, log)
    try:
        boot.start([])
    except NotStarted as error:
        return error.code, log.getvalue()
    return None, log.getvalue()


# --- arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--cuda-graph-bs", "1", "2"], "ambiguous option: --cuda-graph-bs"),
        (["--cuda-graph-max-bs", "8"], "ambiguous option: --cuda-graph-max-bs"),
        (["--enable-nsa-prefill-context-parallel"], "unrecognized arguments"),
        (["--max-running-requests", "many"], "invalid int value"),
        (["--moe-a2a-backend", "deepxp"], "invalid choice"),
        (["--deepep-mode"], "expected one argument"),
    ],
)
def test_wrong_arguments_end_with_argparses_own_words(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_flags([*BASE, *argv])
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert words in text
    finding = classify(Phase.READY, 2, text, "sglang-ascend")
    assert finding.failure_class is FailureClass.INVALID_CONFIG


def test_the_model_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--tp-size", "8"])
    assert "the following arguments are required: --model-path" in capsys.readouterr().err


def test_names_are_read_as_published_recipes_write_them() -> None:
    config = configured("--tp", "4", "--max_running_requests=32", "--ep", "4", "--page-size", "64")
    assert (config.tensor_parallel, config.max_num_seqs, config.expert_parallel) == (4, 32, True)
    assert config.block_size == 64


# --- what becomes of them -------------------------------------------------------------------


def test_captured_batches_are_requests_and_a_step_has_a_row_for_each_draft_and_one_more() -> None:
    sizes = ("--cuda-graph-bs-decode", "1", "2", "4", "16", "--max-running-requests", "64")
    assert configured(*sizes).capture_sizes == (1, 2, 4, 16)
    speculative = configured(*sizes, *DSPARK, "--speculative-num-draft-tokens", "7")
    assert speculative.draft_tokens == 6
    assert speculative.capture_sizes == (7, 14, 28, 112)


def test_no_batch_is_captured_above_the_running_requests_and_these_are() -> None:
    config = configured("--cuda-graph-bs-decode", "1", "8", "64", "--max-running-requests", "12")
    assert config.capture_sizes == (1, 8, 12)
    default = configured("--max-running-requests", "20")
    assert default.capture_sizes == (1, 2, 4, 8, 12, 16, 20)
    assert configured("--cuda-graph-max-bs-decode", "4").capture_sizes == (1, 2, 4)


def test_replicas_of_attention_divide_requests_chunks_and_ranks() -> None:
    config = configured(
        "--dp-size", "4", "--enable-dp-attention", "--max-running-requests", "64", "--chunked-prefill-size", "8192"
    )
    assert (config.data_parallel, config.tensor_parallel) == (4, 2)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (16, 2048)


def test_prefill_captures_nothing_and_decode_caches_no_prefix() -> None:
    prefill = configured("--disaggregation-mode", "prefill", "--chunked-prefill-size", "65536")
    assert (prefill.role, prefill.graph_mode, prefill.capture_sizes) == (Role.PREFILL, GraphMode.NONE, ())
    assert prefill.prefix_caching
    assert prefill.max_num_batched_tokens == 65536
    decode = configured("--disaggregation-mode", "decode", "--chunked-prefill-size", "-1")
    assert (decode.role, decode.prefix_caching, decode.chunked_prefill) == (Role.DECODE, False, False)
    assert decode.graph_mode is GraphMode.FULL_DECODE_ONLY


def test_normal_mode_of_deepep_ends_graphs() -> None:
    assert configured("--moe-a2a-backend", "deepep", "--deepep-mode", "normal").capture_sizes == ()
    assert configured("--deepep-mode", "normal").capture_sizes


def test_the_dispatch_capacity_is_that_of_all_ranks_of_a_replica() -> None:
    env = {"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "35"}
    assert configured(*DEEPEP, env=env).dispatch_capacity == 280
    assert configured(*DEEPEP).dispatch_capacity == 1024
    shared = configured(*DEEPEP, "--dp-size", "8", "--enable-dp-attention", env=env)
    assert shared.dispatch_capacity == 35
    assert configured(env=env).dispatch_capacity is None


def test_switches_of_the_environment_are_read_in_every_spelling() -> None:
    for text in ("1", "true", "True", "yes"):
        config = configured(env={"SGLANG_NPU_USE_MULTI_STREAM": text, "SGLANG_ENABLE_WAR_BARRIER": text})
        assert config.multi_stream
        assert config.barriers
    assert not configured(env={"SGLANG_NPU_USE_MULTI_STREAM": "0"}).multi_stream
    code, log = started(env={"SGLANG_NPU_USE_MULTI_STREAM": "maybe"})
    assert code is None
    assert "Invalid value for SGLANG_NPU_USE_MULTI_STREAM: maybe, using default" in log


def test_the_allocator_does_not_grow_by_itself() -> None:
    assert not configured().allocator.expandable_segments
    assert configured(env={"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}).allocator.expandable_segments


def test_the_host_cache_and_the_scheduler_are_read() -> None:
    config = configured("--enable-hierarchical-cache", "--hicache-ratio", "1.5", "--disable-overlap-schedule")
    assert (config.hierarchical_cache, config.host_cache_ratio, config.async_scheduling) == (True, 1.5, False)
    assert not configured("--disable-radix-cache").prefix_caching


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([*DSPARK, "--speculative-num-draft-tokens", "8"], "must equal speculative_dspark_block_size + 1 (7), got 8"),
        ([*DSPARK, "--enable-dp-attention", "--dp-size", "2"], "requires --enable-dp-lm-head"),
        (["--speculative-algorithm", "SOMETHING"], "Unknown speculative decoding method"),
        (["--speculative-algorithm", "EAGLE3"], "requires --speculative-draft-model-path"),
        (
            ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--speculative-num-draft-tokens", "6"],
            "must be speculative_num_steps + 1",
        ),
        (["--dp-size", "3", "--enable-dp-attention"], "must be divisible by dp_size"),
        (["--ep-size", "16"], "must be divisible by ep_size"),
        (["--mem-fraction-static", "1.4"], "mem_fraction_static must be between 0 and 1"),
        (["--context-length", "999999"], "greater than the derived context_length"),
        (["--enable-hierarchical-cache", "--disable-radix-cache"], "are mutually exclusive"),
        (["--chunked-prefill-size", "-2"], "chunked_prefill_size must be positive or -1"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_anything_starts(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigRejected, match=re.escape(words)):
        configured(*argv)
    code, log = started(*argv)
    assert code == 1
    assert words in log
    assert classify(Phase.READY, 1, log, "sglang-ascend").failure_class is FailureClass.INVALID_CONFIG


def test_more_ranks_than_devices_are_refused() -> None:
    env = {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    code, log = started("--dp-size", "2", env=env)
    assert code == 1
    assert "must be less than or equal to the number of visible devices" in log
    assert started("--dp-size", "2", "--enable-dp-attention", env=env)[0] is None


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"DEEPEP_NORMAL_LONG_SEQ_ROUND": "8"}, "roundSet == tokensSet"),
        (
            {"DEEPEP_NORMAL_LONG_SEQ_ROUND": "64", "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS": "8192"},
            "must not exceed MAX_TOTAL_TOKENS",
        ),
        ({"HCCL_OP_EXPANSION_MODE": "HOST"}, "for environment variable HCCL_OP_EXPANSION_MODE is invalid"),
        ({"HCCL_BUFFSIZE": "0"}, "for environment variable HCCL_BUFFSIZE is invalid"),
        ({"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK": "2048"}, "must be <= 1024"),
        (
            {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64"},
            "cannot be enabled with `expandable_segments`",
        ),
    ],
)
def test_what_a_lower_layer_refuses_kills_the_launchers_whole_tree(env: dict[str, str], words: str) -> None:
    with pytest.raises(EngineFailed):
        configured(*DEEPEP, env=env)
    code, log = started(*DEEPEP, env=env)
    assert code == 137
    lines = log.strip().splitlines()
    assert "usually means the child failed" in lines[-1]
    assert words in log
    finding = classify(Phase.READY, code, log, "sglang-ascend")
    assert finding.failure_class is FailureClass.INVALID_CONFIG
    assert finding.line is not None
    assert words in finding.line


def test_a_missing_model_is_no_candidates_fault() -> None:
    log = io.StringIO()
    with pytest.raises(NotStarted):
        read_command(["launch_server", "--model-path", "/no/such"], {}, log).start([])
    finding = classify(Phase.READY, 1, log.getvalue(), "sglang-ascend")
    assert finding.failure_class is FailureClass.INFRASTRUCTURE


# --- words ----------------------------------------------------------------------------------


def test_the_log_of_a_good_start_holds_no_failure_and_shows_the_effective_configuration() -> None:
    argv = ("--max-running-requests", "12", "--cuda-graph-bs-decode", "1", "8", "64", *DSPARK, *DEEPEP)
    code, log = started(*argv)
    assert code is None
    finding = classify(Phase.READY, None, log, "sglang-ascend")
    assert (finding.signature, finding.line) == (None, None)
    config = effective("sglang-ascend", RolePlan(argv=("--tp-size", "8", *argv)), log)
    assert not config.ignored
    assert [str(change.setting) for change in config.corrected] == ["--cuda-graph-bs-decode"]
    assert config.corrected[0].got == (1, 8, 12)
    assert config.applied["--tp"] == 8
    assert config.applied["--speculative-num-draft-tokens"] == 7
