"""The SGLang spaces: what field report C and published recipes name is there, and every rule does its work."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest

from autotune.domain.draws import draw
from autotune.domain.instance import Instance, instantiate
from autotune.domain.knobs import ChoiceKind, KnobValue
from autotune.domain.launch_parse import parse
from autotune.domain.launch_plan import LaunchPlan, RolePlan, render
from autotune.domain.parsed_launch import ParsedLaunch
from autotune.domain.space import SearchSpace, Settled, Severity
from autotune.domain.stack import StackVersions
from autotune.errors import InvalidCandidate
from search_spaces.catalog import SpaceCatalog

CATALOG = SpaceCatalog()
ONE = CATALOG.space("sglang-ascend-910c")
PD = CATALOG.space("sglang-ascend-950dt-pd")
SPACES = [pytest.param(ONE, id=ONE.name), pytest.param(PD, id=PD.name)]


def facts(**other: Any) -> dict[str, Any]:
    plain = {
        "model": "m", "devices": 16, "tensor_parallel": 8, "max_model_len": None, "model_facts": {},
        "concurrency": [1, 8, 16], "max_concurrency": 16, "prompt_tokens": 1024, "output_tokens": 512,
    }  # fmt: skip
    return {**plain, **other}


def settle(space: SearchSpace, values: dict[str, KnobValue], **other: Any) -> Settled:
    return space.settle(space.complete(values), facts(**other))


def plan(space: SearchSpace, values: dict[str, KnobValue], **other: Any) -> LaunchPlan:
    return render(space, settle(space, values, **other).candidate, facts(**other))


def option(argv: tuple[str, ...], flag: str) -> list[str]:
    """The words after a flag up to the next one."""
    words = argv[argv.index(flag) + 1 :]
    end = next((n for n, word in enumerate(words) if word.startswith("--")), len(words))
    return list(words[:end])


def places(space: SearchSpace, role: str) -> set[str]:
    """Every env variable, fragment, flag and JSON path that a role of the space can set."""
    found: set[str] = set()
    landings = [(k.role, k.lands) for k in space.knobs]
    landings += [(f.role, f.lands) for f in space.fixed] + [(d.role, d.lands) for d in space.derived]
    for whose, landing in landings:
        if whose == role:
            lands = landing.model_dump()
            found |= {str(lands[key]) for key in ("name", "flag", "on") if lands.get(key)}
            if lands["place"] == "env_fragment":
                found.add(f"{lands['name']}:{lands['key']}")
    return found


# --- what is there --------------------------------------------------------------------------

REPORT_C = {
    "prefill": [
        "--enable-hierarchical-cache", "--hicache-io-backend", "--hicache-ratio", "--hicache-write-policy",
        "SGLANG_NPU_USE_MULTI_STREAM", "SGLANG_ENABLE_WAR_BARRIER", "SGLANG_FORCE_COARSE_WAR_BARRIER",
        "SGLANG_ENABLE_PREFILL_WAR_READ_DONE", "--chunked-prefill-size", "DEEPEP_NORMAL_LONG_SEQ_ROUND",
        "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS", "DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ", "--quantization",
        "--kv-cache-dtype", "PYTORCH_NPU_ALLOC_CONF:expandable_segments", "--disaggregation-mode",
    ],
    "decode": [
        "--speculative-algorithm", "--speculative-draft-attention-backend", "--speculative-num-draft-tokens",
        "--speculative-dspark-block-size", "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "--cuda-graph-bs-decode",
        "DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS", "DEEPEP_NORMAL_LONG_SEQ_ROUND", "HCCL_BUFFSIZE",
        "DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ", "DEEPEP_HCCL_BUFFSIZE", "--max-running-requests",
        "--chunked-prefill-size", "--quantization", "--kv-cache-dtype", "SGLANG_ENABLE_OVERLAP_PLAN_STREAM",
        "SGLANG_ENABLE_SPEC_V2", "PYTORCH_NPU_ALLOC_CONF:expandable_segments", "--enable-cache-report",
    ],
}  # fmt: skip

PUBLISHED = [
    "--fuseep-mode", "SGLANG_SCHEDULER_DECREASE_PREFILL_IDLE", "SGLANG_NPU_USE_DEEPGEMM",
    "SGLANG_SPEC_ENABLE_OVERLAP_REFLOW", "INF_NAN_MODE_FORCE_DISABLE", "--pp-size", "--enable-multi-layer-eagle",
    "--swa-full-tokens-ratio", "--prefill-delayer-max-delay-passes", "--speculative-draft-model-quantization",
    "--sampling-backend", "--context-length", "SGLANG_PREFILL_DELAYER_MAX_DELAY_PASSES",
]  # fmt: skip


@pytest.mark.parametrize(("role", "place"), [(role, p) for role, all_ in REPORT_C.items() for p in all_])
def test_every_setting_of_field_report_c_resolves(role: str, place: str) -> None:
    assert place in places(PD, role)


@pytest.mark.parametrize("place", PUBLISHED)
def test_what_published_recipes_use_resolves_in_every_role(place: str) -> None:
    assert place in places(ONE, "server")
    assert place in places(PD, "prefill")
    assert place in places(PD, "decode")


@pytest.mark.parametrize("place", ["--attn-cp-size", "--enable-prefill-cp", "--cp-strategy"])
def test_prompts_spread_over_ranks_are_known_where_there_are_prompts(place: str) -> None:
    assert place in places(ONE, "server")
    assert place in places(PD, "prefill")


def test_the_router_deals_in_turn() -> None:
    assert "SGLANG_DP_ROUND_ROBIN" in places(PD, "router")


REACHED: list[tuple[str, KnobValue]] = [
    ("max_running_requests", 768),
    ("max_running_requests", 832),
    ("deepep_dispatch_tokens", 12),
    ("deepep_dispatch_tokens", 48),
    ("deepep_dispatch_tokens", 512),
    ("deepep_dispatch_tokens", 204800),
    ("max_prefill_tokens", 16384),
    ("max_prefill_tokens", 458880),
    ("chunked_prefill_size", 94208),
    ("chunked_prefill_size", 65536),
    ("chunked_prefill_size", -1),
    ("hccl_buffsize_mb", 4300),
    ("hccl_buffsize_mb", 2600),
    ("hccl_buffsize_mb", 1),
    ("mem_fraction_static", 0.53),
    ("spec_algorithm", "EAGLE"),
    ("spec_num_draft_tokens", 16),
    ("long_seq_round", 64),
    ("fused_moe_mode", 2),
    ("decrease_prefill_idle", 2),
    ("task_queue", 2),
    ("hicache_ratio", 1.5),
]


@pytest.mark.parametrize(("name", "value"), REACHED)
def test_ranges_reach_what_was_published_in_every_role(name: str, value: KnobValue) -> None:
    assert ONE.by_name[name].contains(value)
    assert PD.by_name[f"prefill_{name}"].contains(value)
    assert PD.by_name[f"decode_{name}"].contains(value)


def test_up_to_fourteen_graph_sizes_in_requests() -> None:
    for knob in (ONE.by_name["cuda_graph_bs_decode"], PD.by_name["decode_cuda_graph_bs_decode"]):
        assert knob.contains((1, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40))
        assert knob.contains((1, 2, 4, 8, 16, 20, 24, 26, 27))
        assert not knob.contains(tuple(range(1, 16)))


# --- the data is sound ----------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES)
def test_a_condition_asks_for_knobs_that_stand_above(space: SearchSpace) -> None:
    above: set[str] = set()
    for knob in space.knobs:
        assert set(re.findall(r"knobs\.(\w+)", knob.when or "")) <= above, knob.name
        above.add(knob.name)


@pytest.mark.parametrize("space", SPACES)
def test_every_knob_says_what_it_does_and_where_that_is_known_from(space: SearchSpace) -> None:
    assert [k.name for k in space.knobs if not k.source or len(k.about) < 15] == []
    assert [r.name for r in space.rules if not r.mend or not r.why] == []
    assert {k.tier for k in space.knobs} == {1, 2, 3, 4}


def test_what_moved_together_in_field_report_c_is_one_group() -> None:
    together = {k.name for k in PD.knobs if k.group == "prefill-multi-stream-and-barriers"}
    assert together == {
        "prefill_npu_use_multi_stream", "prefill_war_barrier", "prefill_coarse_war_barrier",
        "prefill_prefill_war_read_done",
    }  # fmt: skip


@pytest.mark.parametrize("space", SPACES)
def test_only_the_engine_s_own_refusals_refuse(space: SearchSpace) -> None:
    refusing = {re.sub(r"^(prefill|decode)-", "", r.name) for r in space.rules if r.severity is Severity.REFUSE}
    assert refusing <= {
        "devices-suffice", "replicas-divide-ranks", "ranks-divide-heads", "long-sequence-limit", "draft-model-at-hand",
        "graphs-need-task-queue", "graphs-need-free-launches", "graphs-need-plain-pinned-memory",
        "prompt-drafts-need-another-device",
    }  # fmt: skip


# --- rules ----------------------------------------------------------------------------------

DEEPEP: dict[str, KnobValue] = {"moe_a2a_backend": "deepep", "deepep_mode": "low_latency"}
DSPARK: dict[str, KnobValue] = {"spec_algorithm": "DSPARK", "dspark_block_size": 6}
HIDDEN = {"model_facts": {"hidden_size": 7168, "experts": 256}}

# Rule, the roles that have it, values that break it, facts, and what the repair leaves.
Case = tuple[str, str, dict[str, KnobValue], dict[str, Any], dict[str, KnobValue]]
CASES: list[Case] = [
    ("tp-size-differs", "SPD", {"tp_size": 8}, {}, {"tp_size": None}),
    ("devices-suffice", "SPD", {"dp_size": 4}, {}, {}),
    ("replicas-divide-ranks", "SPD", {"dp_size": 16, "enable_dp_attention": True}, {}, {}),
    ("ranks-divide-heads", "SPD", {}, {"model_facts": {"attention_heads": 12}}, {}),
    ("experts-fit-ranks", "SPD", {"ep_size": 4, **DEEPEP}, {}, {"ep_size": 8}),
    ("buffer-holds-dispatch", "SPD", {"hccl_buffsize_mb": 256, **DEEPEP}, HIDDEN, {}),
    (
        "dispatch-holds-a-step", "SD", {**DEEPEP, **DSPARK, "max_running_requests": 196}, {},
        {"deepep_dispatch_tokens": 172},
    ),
    (
        "dispatch-holds-a-graph", "SD",
        {**DEEPEP, **DSPARK, "dp_size": 8, "enable_dp_attention": True, "enable_dp_lm_head": True,
         "deepep_dispatch_tokens": 35, "cuda_graph_bs_decode": (1, 2, 4, 8)}, {},
        {"deepep_dispatch_tokens": 56},
    ),
    (
        "dispatch-below-limit", "SPD", {**DEEPEP, "deepep_dispatch_tokens": 2048}, {}, {"deepep_dispatch_tokens": None},
    ),
    (
        "step-within-dispatch-limit", "SD",
        {**DEEPEP, **DSPARK, "dspark_block_size": 16, "max_running_requests": 768}, {},
        {"deepep_dispatch_tokens": 1024},
    ),
    ("prompt-drafts-need-another-device", "SPD", {"spec_algorithm": "NGRAM"}, {}, {}),
    (
        "levels-need-a-prefix-cache", "SP",
        {"enable_hierarchical_cache": True, "hicache_ratio": 1.5, "disable_radix_cache": True}, {},
        {"enable_hierarchical_cache": None, "hicache_ratio": None, "disable_radix_cache": True},
    ),
    (
        "caches-no-prefixes", "D", {"enable_hierarchical_cache": True, "hicache_ratio": 1.5}, {},
        {"enable_hierarchical_cache": None, "hicache_ratio": None},
    ),
    ("long-sequence-together", "SPD", {**DEEPEP, "long_seq_round": 8}, {}, {"long_seq_per_round_tokens": 8192}),
    (
        "long-sequence-together", "SPD", {**DEEPEP, "long_seq_per_round_tokens": 2048}, {}, {"long_seq_round": 1},
    ),
    ("long-sequence-limit", "SPD", {**DEEPEP, "long_seq_round": 64, "long_seq_per_round_tokens": 4096}, {}, {}),
    (
        "growing-segments-stand-alone", "SPD", {"alloc_expandable_segments": True, "alloc_max_split_size_mb": 256}, {},
        {"alloc_max_split_size_mb": None, "alloc_expandable_segments": True},
    ),
    (
        "one-use-of-pinned-memory", "P",
        {"alloc_pin_memory_expandable_segments": True, "alloc_pinned_mem_register": True},
        {}, {"alloc_pinned_mem_register": None},
    ),
    (
        "one-use-of-pinned-memory", "SD",
        {"alloc_pin_memory_expandable_segments": True, "alloc_pinned_mem_register": True, "disable_cuda_graph": True},
        {}, {"alloc_pinned_mem_register": None},
    ),
    ("graphs-need-task-queue", "SD", {"task_queue": 2}, {}, {}),
    ("graphs-need-free-launches", "SD", {"ascend_launch_blocking": 1}, {}, {}),
    ("graphs-need-plain-pinned-memory", "SD", {"alloc_pin_memory_expandable_segments": True}, {}, {}),
    ("memory-for-buffers", "SPD", {"mem_fraction_static": 0.9, "hccl_buffsize_mb": 4300}, {}, {}),
    ("memory-for-buffers-950", "PD", {"mem_fraction_static": 0.95, "hccl_buffsize_mb": 4300}, {}, {}),
    ("aiv-with-expert-parallelism", "SPD", {**DEEPEP, "hccl_op_expansion_mode": "AIV"}, {}, {}),
    (
        "few-graphs-with-ai-cpu", "SD",
        {"hccl_op_expansion_mode": "AI_CPU", "cuda_graph_bs_decode": (1, 2, 4, 6, 8, 12, 16)}, {}, {},
    ),
    ("few-graphs", "SD", {"cuda_graph_bs_decode": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)}, {}, {}),
    ("graphs-cover-the-load", "SD", {"cuda_graph_bs_decode": (1, 8)}, {}, {}),
    ("graphs-within-the-limit", "SD", {"cuda_graph_bs_decode": (1, 16), "max_running_requests": 8}, {}, {}),
    ("normal-mode-without-graphs", "SD", {"moe_a2a_backend": "deepep", "deepep_mode": "normal"}, {}, {}),
    (
        "dspark-shares-the-output-layer", "SPD", {**DSPARK, "dp_size": 8, "enable_dp_attention": True}, {},
        {"enable_dp_lm_head": True},
    ),
    ("draft-model-at-hand", "SPD", {"spec_algorithm": "EAGLE3"}, {"model_facts": {"draft_model": False}}, {}),
    ("one-core-binding", "SPD", {"set_cpu_affinity": True, "cpu_affinity_conf": 2}, {}, {}),
    ("fp8-needs-950", "SPD", {"kv_cache_dtype": "fp8_e4m3"}, {}, {}),
    ("state-slots-hold-the-requests", "SPD", {"max_mamba_cache_size": 8, "max_running_requests": 64}, {}, {}),
]  # fmt: skip
PREFIX = {"S": "", "P": "prefill", "D": "decode"}
FLAT = [
    pytest.param(role, *case, id=f"{role}-{case[0]}-{number}") for number, case in enumerate(CASES) for role in case[1]
]


def named(role: str, values: dict[str, KnobValue]) -> dict[str, KnobValue]:
    start = f"{PREFIX[role]}_" if PREFIX[role] else ""
    return {start + name: value for name, value in values.items()}


@pytest.mark.parametrize(("role", "rule", "roles", "values", "told", "left"), FLAT)
def test_every_rule_has_its_say(
    role: str,
    rule: str,
    roles: str,
    values: dict[str, KnobValue],
    told: dict[str, Any],
    left: dict[str, KnobValue],
) -> None:
    space = ONE if role == "S" else PD
    name = f"{PREFIX[role]}-{rule}".strip("-")
    severity = next(r.severity for r in space.rules if r.name == name)
    if severity is Severity.REFUSE:
        with pytest.raises(InvalidCandidate) as caught:
            settle(space, named(role, values), **told)
        assert name in [problem.key for problem in caught.value.problems]
        return
    settled = settle(space, named(role, values), **told)
    if severity is Severity.REPAIR:
        assert name in settled.repairs
        for knob, value in named(role, left).items():
            assert settled.candidate.values.get(knob) == value
    else:
        assert any(text.startswith(f"{name}: ") for text in settled.warnings)
        assert settled.stall_limit_s == (300 if severity is Severity.ARM else None)


def test_the_two_roles_together_need_their_devices() -> None:
    assert any(w.startswith("roles-fit-together") for w in settle(PD, {}, devices=8).warnings)
    assert not any(w.startswith("roles-fit-together") for w in settle(PD, {}, devices=16).warnings)


def test_the_two_roles_keep_one_format_of_the_cache() -> None:
    settled = settle(PD, {"prefill_kv_cache_dtype": "fp8_e4m3"})
    assert any(w.startswith("roles-quantize-alike") for w in settled.warnings)


@pytest.mark.parametrize("space", SPACES)
def test_no_rule_is_without_a_case(space: SearchSpace) -> None:
    shown = {f"{PREFIX[role]}-{case[0]}".strip("-") for case in CASES for role in case[1]}
    shown |= {"roles-fit-together", "roles-quantize-alike"}
    derived = {r.name for r in space.rules if r.severity is Severity.DERIVE}
    assert {r.name for r in space.rules} - shown == derived
    assert {re.sub(r"^(prefill|decode)-", "", name) for name in derived} == {"dspark-checks-one-more"}


@pytest.mark.parametrize("role", ["S", "D"])
def test_dspark_checks_its_block_and_one_more(role: str) -> None:
    space = ONE if role == "S" else PD
    # 9 would be refused by the engine; the derived setting has the word.
    argv = plan(space, named(role, {**DSPARK, "spec_num_draft_tokens": 9})).roles[PREFIX[role] or "server"].argv
    assert option(argv, "--speculative-num-draft-tokens") == ["7"]
    assert option(argv, "--speculative-dspark-block-size") == ["6"]


def test_draft_tokens_follow_the_steps_where_there_is_one_branch() -> None:
    argv = plan(ONE, {"spec_algorithm": "NEXTN", "spec_num_steps": 3}).roles["server"].argv
    assert option(argv, "--speculative-eagle-topk") == ["1"]
    assert option(argv, "--speculative-num-draft-tokens") == ["4"]
    tree: dict[str, KnobValue] = {"spec_algorithm": "EAGLE", "spec_num_steps": 3, "spec_eagle_topk": 4}
    argv = plan(ONE, {**tree, "spec_num_draft_tokens": 8}).roles["server"].argv
    assert option(argv, "--speculative-eagle-topk") == ["4"]
    assert option(argv, "--speculative-num-draft-tokens") == ["8"]


def test_prefill_may_use_what_decode_may_not() -> None:
    roles = plan(PD, {"prefill_task_queue": 2, "decode_task_queue": 0}).roles
    assert roles["prefill"].env["TASK_QUEUE_ENABLE"] == "2"
    assert roles["decode"].env["TASK_QUEUE_ENABLE"] == "0"


def test_dispatch_is_not_checked_without_deepep_in_low_latency() -> None:
    values: dict[str, KnobValue] = {"moe_a2a_backend": "ascend_fuseep", "deepep_dispatch_tokens": 12}
    settled = settle(ONE, {**values, "max_running_requests": 768})
    assert settled.repairs == ()
    assert settled.candidate.values["deepep_dispatch_tokens"] == 12
    values = {"max_running_requests": 768, "deepep_dispatch_tokens": 12}
    assert "deepep_dispatch_tokens" not in settle(ONE, values).candidate.values


def test_a_dense_model_has_no_expert_knobs() -> None:
    settled = settle(ONE, {**DEEPEP, "ep_size": 8}, model_facts={"experts": 0})
    assert settled.candidate.values == {}


# --- launch ---------------------------------------------------------------------------------


def test_nothing_set_leaves_only_what_the_study_needs() -> None:
    server = plan(ONE, {}, max_model_len=4096).roles["server"]
    assert server.env == {}
    assert server.argv == (
        "--enable-metrics", "--enable-cache-report", "--tp-size", "8", "--context-length", "4096",
    )  # fmt: skip
    roles = plan(PD, {"decode_tp_size": 4}).roles
    assert set(roles) == {"prefill", "decode", "router"}
    assert option(roles["prefill"].argv, "--tp-size") == ["8"]
    assert option(roles["decode"].argv, "--tp-size") == ["4"]
    assert option(roles["decode"].argv, "--disaggregation-mode") == ["decode"]
    assert roles["router"].argv == ("--pd-disaggregation",)


def test_the_settings_of_field_report_c_render_as_they_were_run() -> None:
    recipe = next(r for r in PD.recipes if r.name == "report-c-tuned")
    decode = plan(PD, recipe.values).roles["decode"]
    assert option(decode.argv, "--cuda-graph-bs-decode") == ["1", "2", "4", "6", "8", "10", "12", "14", "16"]
    assert option(decode.argv, "--max-running-requests") == ["196"]
    assert decode.argv[decode.argv.index("--chunked-prefill-size") + 1] == "-1"
    assert decode.env["HCCL_BUFFSIZE"] == "2600"
    assert decode.env["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] == "512"
    assert decode.env["PYTORCH_NPU_ALLOC_CONF"] == "expandable_segments:True"
    early = plan(PD, next(r for r in PD.recipes if r.name == "report-c-early").values).roles["prefill"]
    assert "--enable-hierarchical-cache" in early.argv
    assert option(early.argv, "--hicache-ratio") == ["1.5"]
    assert early.env["SGLANG_NPU_USE_MULTI_STREAM"] == "1"


@pytest.mark.parametrize("space", SPACES)
def test_recipes_are_in_the_default_instance_and_launch(space: SearchSpace) -> None:
    instance = instantiate(space, space.stack).space
    assert [r.name for r in instance.recipes] == [r.name for r in space.recipes]
    for recipe in instance.recipes:
        render(instance, settle(instance, recipe.values).candidate, facts())


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("include", [(), ("tier3",)], ids=["default", "tier3"])
def test_random_candidates_settle_and_render(space: SearchSpace, include: tuple[str, ...]) -> None:
    instance = instantiate(space, space.stack, include).space
    rng = Random(910)
    launchable = 0
    for _ in range(60):
        try:
            settled = instance.settle(draw(instance, facts(), rng, unset=0.8), facts())
        except InvalidCandidate:
            continue
        launchable += 1
        candidate = settled.candidate
        assert instance.problems({**instance.complete({}), **candidate.values}) == []
        again = instance.settle(candidate.values, facts())
        assert (again.candidate, again.repairs) == (candidate, ())
        assert json.loads(render(instance, candidate, facts()).model_dump_json())
    assert launchable > 15


# --- stacks ---------------------------------------------------------------------------------


def left_out(instance: Instance) -> dict[str, str]:
    return {f"{item.what} {item.name}": item.why for item in instance.left_out}


def test_the_default_instance_has_tiers_one_and_two() -> None:
    instance = instantiate(ONE, ONE.stack)
    assert {k.tier for k in instance.space.knobs} == {1, 2}
    out = left_out(instance)
    assert out["knob page_size"] == "not searched by default: tier 3, include it by name"
    assert out["knob quantization"] == "not searched: tier 4"
    assert "page_size" in instantiate(ONE, ONE.stack, ["page_size"]).space.by_name
    assert "quantization" not in instantiate(ONE, ONE.stack, ["tier3"]).space.by_name


def test_a_chip_has_its_own_modes() -> None:
    on_c = instantiate(ONE, ONE.stack).space.by_name["hccl_op_expansion_mode"].type
    assert isinstance(on_c, ChoiceKind)
    assert on_c.values == ("AIV", "AI_CPU", "AICPU_CacheDisable")
    on_950 = instantiate(PD, PD.stack).space.by_name["decode_hccl_op_expansion_mode"].type
    assert isinstance(on_950, ChoiceKind)
    assert on_950.values == ("AIV", "AI_CPU", "AICPU_TS", "CCU_MS", "CCU_SCHED")


def test_950_takes_four_options_of_the_allocator() -> None:
    def options(chip: str) -> set[str]:
        instance = instantiate(PD, StackVersions(chip=chip), ["tier3"])
        return {k.name for k in instance.space.knobs if k.name.startswith("decode_alloc_")}

    assert options("950DT") == {
        "decode_alloc_expandable_segments", "decode_alloc_pinned_use_background_threads",
        "decode_alloc_pinned_mem_register", "decode_alloc_pin_memory_expandable_segments",
    }  # fmt: skip
    assert "decode_alloc_page_size" in options("910C")


def test_fp8_is_a_matter_of_the_chip() -> None:
    def rules(chip: str) -> set[str]:
        return {r.name for r in instantiate(PD, StackVersions(chip=chip)).space.rules}

    assert "decode-fp8-needs-950" in rules("910C")
    assert "decode-fp8-needs-950" not in rules("950DT")
    assert "prefill-buffer-holds-dispatch" not in rules("950DT")


def test_a_release_has_its_own_settings() -> None:
    old = instantiate(ONE, StackVersions(engine="0.5.12", chip="910C"))
    assert "cuda_graph_bs_decode" not in old.space.by_name
    assert left_out(old)["knob cuda_graph_bs_decode"] == "needs engine >=0.5.23, here is 0.5.12"
    assert old.space.settle({"moe_a2a_backend": "deepep"}, facts()).candidate.values == {"moe_a2a_backend": "deepep"}
    renamed = {r.old: r.new for r in ONE.renames if r.needs.missing(ONE.stack) is None}
    assert renamed["--cuda-graph-bs"] == "--cuda-graph-bs-decode"
    assert renamed["--cuda-graph-max-bs"] == "--cuda-graph-max-bs-decode"
    assert "env SGLANG_ENABLE_SPEC_V2" in {d.key for d in ONE.dead}


@pytest.mark.parametrize("space", SPACES)
def test_the_old_names_of_prompts_over_ranks_are_read_under_the_new_ones(space: SearchSpace) -> None:
    role, start = ("server", "") if space is ONE else ("prefill", "prefill_")

    def read(strategy: str) -> ParsedLaunch:
        argv = ("--enable-nsa-prefill-context-parallel", "--nsa-prefill-cp-mode", strategy, "--attn-cp-size", "8")
        return parse(space, {role: RolePlan(argv=argv)})

    current = read("zigzag")
    assert {(r.old, r.new) for r in current.renamed} == {
        ("--enable-nsa-prefill-context-parallel", "--enable-prefill-cp"), ("--nsa-prefill-cp-mode", "--cp-strategy"),
    }  # fmt: skip
    assert current.candidate[f"{start}enable_prefill_cp"] is True
    assert current.candidate[f"{start}cp_strategy"] == "zigzag"
    old = read("in-seq-split")
    assert ("out-of-range", "warn") in {(f.rule, f.severity) for f in old.findings}
    assert not old.is_refused
    assert [given.key for given in old.unknown] == ["--cp-strategy"]


@pytest.mark.parametrize("space", SPACES)
def test_the_variable_of_the_fused_operator_is_dead_and_its_flag_is_read(space: SearchSpace) -> None:
    role, name = ("server", "fused_moe_mode") if space is ONE else ("decode", "decode_fused_moe_mode")
    read = parse(space, {role: RolePlan(env={"SGLANG_NPU_FUSED_MOE_MODE": "2"}, argv=("--fuseep-mode", "1"))})
    assert [(given.key, given.mend) for given in read.unread] == [
        ("env SGLANG_NPU_FUSED_MOE_MODE", "write --fuseep-mode 1 or 2"),
    ]  # fmt: skip
    assert read.candidate[name] == 1


def test_what_goes_with_a_model_of_images_is_known_and_not_searched() -> None:
    tiers = {name: ONE.by_name[name].tier for name in ("mm_attention_backend", "enable_multimodal")}
    assert tiers == {"mm_attention_backend": 4, "enable_multimodal": 4}
    found = {name: ONE.by_name[name] for name in ("ep_dispatch_algorithm", "mamba_ssm_dtype")}
    assert {name: (knob.tier, knob.risk) for name, knob in found.items()} == {
        "ep_dispatch_algorithm": (3, False), "mamba_ssm_dtype": (3, True),
    }  # fmt: skip


def test_older_software_lacks_large_pages() -> None:
    assert "alloc_page_size" not in instantiate(ONE, StackVersions(cann="8.0.0")).space.by_name
    assert "alloc_page_size" in instantiate(ONE, StackVersions(cann="8.1rc1")).space.by_name
