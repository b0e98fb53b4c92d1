"""The spaces of vllm-ascend: what field reports name resolves, every rule can be broken, versions count."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.domain.deployment import Deployment, facts
from autotune.domain.instance import instantiate
from autotune.domain.knobs import Constant, EnvFragment, EnvVar, Flag, JsonPath, KnobValue, Landing, Switch
from autotune.domain.launch_plan import render
from autotune.domain.space import SearchSpace, Severity
from autotune.domain.space_size import estimate
from autotune.domain.stack import StackVersions
from autotune.domain.workload import LoadLevel, Workload
from autotune.errors import InvalidCandidate
from search_spaces.catalog import SpaceCatalog

NAMES = ("vllm-ascend-910c", "vllm-ascend-910b")
SPACES = {name: SpaceCatalog().space(name) for name in NAMES}
SPACE = SPACES["vllm-ascend-910c"]
MOE = {"experts": 128, "experts_per_token": 8, "hidden_size": 4096, "shared_experts": 1}
ALLOCATOR = "env PYTORCH_NPU_ALLOC_CONF:"
# What field report A sets, tries or changes in the source, by the key it has in a launch.
REPORT_A = (
    "env HCCL_OP_EXPANSION_MODE",
    "--additional-config ascend_compilation_config.enable_static_kernel",
    "env LOCAL_WORLD_SIZE",
    f"{ALLOCATOR}expandable_segments",
    f"{ALLOCATOR}base_addr_aligned_kb",
    f"{ALLOCATOR}page_size",
    f"{ALLOCATOR}pinned_use_background_threads",
    f"{ALLOCATOR}pin_memory_expandable_segments",
    f"{ALLOCATOR}roundup_power2_divisions",
    "LD_PRELOAD",
    "env ACLNN_CACHE_LIMIT",
    "env VLLM_ASCEND_ENABLE_BATCH_MEMCPY",
    "--additional-config weight_prefetch_config.enabled",
    "--additional-config pa_shape_list",
    "constant vllm_ascend.ops.weight_prefetch:MOE_PREFETCH_TOKEN_THRESHOLD",
    "constant vllm_ascend.platform:CUDAGRAPH_NUM_OF_WARMUPS",
    "--speculative-config num_speculative_tokens",
    "--speculative-config method",
    "--compilation-config cudagraph_mode",
    "--compilation-config cudagraph_capture_sizes",
    "env HCCL_BUFFSIZE",
    "env HCCL_DETERMINISTIC",
    "env HCCL_WHITELIST_DISABLE",
    "env COMBINED_ENABLE",
    "env OMP_NUM_THREADS",
    "env GE_USE_STATIC_MEMORY",
    "--additional-config enable_cpu_binding",
    "env CPU_AFFINITY_CONF",
    "env VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE",
    "env VLLM_ASCEND_ENABLE_FLASHCOMM1",
    "env FINE_GRAIN_REPLAY_SYNC",
    "--tensor-parallel-size",
    "env ASCEND_RT_VISIBLE_DEVICES",
)
REPORT_B = ("--tensor-parallel-size", "--data-parallel-size", "--enable-expert-parallel", "env HCCL_ALGO")


def known(model_facts: dict[str, Any] | None = None, devices: int = 2, concurrency: int = 8) -> dict[str, Any]:
    deployment = Deployment(
        template="t",
        model="m",
        devices=devices,
        tensor_parallel=min(devices, 2),
        max_model_len=4096,
        model_facts=model_facts or {},
    )
    levels = (LoadLevel(concurrency=1, requests=8), LoadLevel(concurrency=concurrency, requests=80))
    return facts(deployment, Workload(prompt_tokens=1024, output_tokens=512, levels=levels))


def key(lands: Landing) -> str:
    match lands:
        case EnvVar():
            return f"env {lands.name}"
        case EnvFragment():
            return f"env {lands.name}:{lands.key}"
        case Flag():
            return lands.flag
        case Switch():
            return lands.on
        case JsonPath():
            return f"{lands.flag} {lands.path}"
        case Constant():
            return f"constant {lands.target}"
    return "LD_PRELOAD" if lands.place == "preload" else lands.place


def keys(space: SearchSpace) -> set[str]:
    landings = [*(knob.lands for knob in space.knobs), *(setting.lands for setting in space.derived)]
    return set(map(key, landings))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("setting", [*REPORT_A, *REPORT_B])
def test_what_the_field_reports_name_resolves(name: str, setting: str) -> None:
    assert setting in keys(SPACES[name])


@pytest.mark.parametrize("name", NAMES)
def test_every_knob_says_what_it_does_and_where_that_comes_from(name: str) -> None:
    space = SPACES[name]
    assert all(knob.about and knob.source for knob in space.knobs)
    assert all(knob.unset or knob.name in space.baseline for knob in space.knobs)
    assert all("Not searched" in knob.about for knob in space.knobs if knob.tier == 4)
    assert all(rule.why and rule.mend and rule.source for rule in space.rules)


@pytest.mark.parametrize("name", NAMES)
def test_a_condition_looks_only_at_earlier_knobs(name: str) -> None:
    """Values are drawn in the order of the file."""
    earlier: list[str] = []
    for knob in SPACES[name].knobs:
        words = set((knob.when or "").replace("knobs.", " knobs.").replace(")", " ").split())
        asked = {word.removeprefix("knobs.") for word in words if word.startswith("knobs.")}
        assert asked <= set(earlier), knob.name
        earlier.append(knob.name)


@pytest.mark.parametrize("name", NAMES)
def test_how_many_knobs_there_are(name: str) -> None:
    tiers = [sum(knob.tier == tier for knob in SPACES[name].knobs) for tier in (1, 2, 3, 4)]
    changed_source = 3 if name == "vllm-ascend-910b" else 0  # what report B changed
    assert tiers == [25, 24, 90 + changed_source, 57]


@pytest.mark.parametrize("name", NAMES)
def test_most_random_draws_are_launchable(name: str) -> None:
    space = instantiate(SPACES[name], SPACES[name].stack).space
    size = estimate(space, known(), draws=300)
    assert size.unjudged == 0
    assert size.refused < 0.35
    assert size.combinations > 10**9


@pytest.mark.parametrize("name", NAMES)
def test_without_facts_of_the_model_its_knobs_are_unset(name: str) -> None:
    space = instantiate(SPACES[name], SPACES[name].stack, ("tier3",)).space
    active = {knob.name for knob in space.knobs if space.is_active(knob, space.baseline, known())}
    assert not active & {"expert_parallel", "fused_mc2", "dynamic_eplb", "mlapo", "kv_nz", "xlite_graph", "flashcomm"}
    with_facts = {k.name for k in space.knobs if space.is_active(k, space.baseline, known({**MOE, "mla": True}))}
    assert with_facts - active >= {"expert_parallel", "mlapo", "multistream_overlap_shared_expert"}


# --- rules: one case that breaks each -------------------------------------------------------

BREAKS: dict[str, tuple[dict[str, KnobValue], dict[str, Any]]] = {
    "page-options-need-expandable-segments": ({"alloc_page_size": "1g"}, known()),
    "growing-segments-are-not-limited": (
        {"alloc_expandable_segments": True, "alloc_max_split_size_mb": 256},
        known(),
    ),
    "pinned-register-is-inert": (
        {
            "alloc_pin_memory_expandable_segments": True,
            "alloc_pinned_mem_register": True,
            "cudagraph_mode": "NONE",
        },
        known(),
    ),
    "pinned-segments-under-graphs": ({"alloc_pin_memory_expandable_segments": True}, known()),
    "pinned-segments-are-refused-under-graphs": ({"alloc_pin_memory_expandable_segments": True}, known()),
    "task-queue-2-under-graphs": ({"task_queue": 2}, known()),
    "blocking-launches-under-graphs": ({"launch_blocking": 1}, known()),
    "static-kernels-need-the-graph-compiler": ({"static_kernel": True, "npugraph_ex": False}, known()),
    "listed-sizes-cover-the-load": ({"capture_sizes": (1, 2, 4, 8), "mtp_draft_length": 4}, known()),
    "ceiling-covers-the-load": ({"max_capture_size": 8, "mtp_draft_length": 4}, known()),
    "sequence-parallel-steps-fit": ({"enable_sp": True, "mtp_draft_length": 2}, known()),
    "hybrid-states-fit": ({"max_num_seqs": 64}, known({"kv_blocks": 32})),
    "draft-length-suits-the-heads": ({"mtp_draft_length": 5}, known({"draft_layers": 2})),
    "draft-ranks-are-one-or-all": ({"mtp_draft_length": 2, "draft_tensor_parallel": 4}, known()),
    "lookup-window-is-ordered": (
        {"mtp_draft_length": 2, "speculation_method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 2},
        known(),
    ),
    "context-fits-the-model": ({}, known({"context": 2048})),
    "budget-holds-every-seat": ({"max_num_seqs": 256, "max_num_batched_tokens": 128}, known()),
    "budget-holds-a-whole-prompt": ({"chunked_prefill": False, "max_num_batched_tokens": 1024}, known()),
    "seats-for-every-stream": ({"max_num_seqs": 4}, known()),
    "memory-outside-the-engine": ({"gpu_memory_utilization": 0.97, "hccl_buffsize_mb": 2048}, known()),
    "fp8-needs-a-950": ({"kv_cache_dtype": "fp8_e4m3"}, known()),
    "ranks-fit-the-devices": ({"data_parallel": 2}, known()),
    "ranks-divide-the-heads": ({}, known({"attention_heads": 9})),
    "buffer-holds-the-expert-exchange": (
        {"expert_parallel": True, "hccl_buffsize_mb": 64, "mtp_draft_length": 15},
        known(MOE, concurrency=256),
    ),
    "aiv-with-expert-exchange": (
        {"expert_parallel": True, "hccl_op_expansion_mode": "AIV", "tensor_parallel": 16},
        known(MOE, devices=16),
    ),
    "links-are-chosen-together": ({"hccl_intra_roce": 0}, known()),
    "overlap-is-off-under-fused-exchange": (
        {"expert_parallel": True, "fused_mc2": 1, "multistream_overlap_shared_expert": True},
        known(MOE),
    ),
    "one-binding-of-cores": ({"cpu_affinity_conf": 2}, known()),
    "ranks-as-deployed": ({"tensor_parallel": 2}, known()),
    "drafts-of-the-model-itself": ({"mtp_draft_length": 2, "speculation_method": "mtp"}, known()),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule_name", sorted(BREAKS))
def test_every_rule_has_a_case_that_breaks_it(name: str, rule_name: str) -> None:
    values, about = BREAKS[rule_name]
    whole = SPACES[name]
    rule = next(rule for rule in whole.rules if rule.name == rule_name)
    space = whole.model_copy(update={"rules": (rule,)})
    assert not space.settle(space.complete({}), known()).warnings
    if rule.severity is Severity.REFUSE:
        with pytest.raises(InvalidCandidate) as caught:
            space.settle(space.complete(values), about)
        (problem,) = caught.value.problems
        assert (problem.key, problem.message, problem.mend) == (rule.name, rule.why, rule.mend)
        return
    settled = space.settle(space.complete(values), about)
    if rule.severity is Severity.REPAIR:
        assert settled.repairs == (rule.name,)
    else:
        assert [warning.split(":")[0] for warning in settled.warnings] == [rule.name]
    assert settled.stall_limit_s == (300 if rule.severity is Severity.ARM else None)


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_is_without_a_case(name: str) -> None:
    derived = {rule.name for rule in SPACES[name].rules if rule.severity is Severity.DERIVE}
    assert derived == {"capture-sizes-follow-the-load"}
    assert {rule.name for rule in SPACES[name].rules} == BREAKS.keys() | derived


def test_derived_sizes_cover_the_load() -> None:
    space = instantiate(SPACE, SPACE.stack).space

    def sizes(values: dict[str, KnobValue]) -> KnobValue:
        candidate = space.settle(space.complete(values), known()).candidate
        found = {setting.name: value for setting, value in space.derived_values(candidate, known())}
        return found["cudagraph_capture_sizes"]

    assert sizes({}) == (1, 8)
    assert sizes({"mtp_draft_length": 4}) == (5, 40)
    assert sizes({"enable_sp": True}) == (2, 8)  # whole multiples of the ranks


# --- versions -------------------------------------------------------------------------------


def left_out(space: SearchSpace, *include: str, **stack: str) -> dict[str, str]:
    found = instantiate(space, StackVersions(**stack), include).left_out
    return {item.name: item.why for item in found}


def test_an_instance_leaves_out_what_its_versions_lack() -> None:
    new = left_out(SPACE, "tier3", engine="0.23.0", cann="9.1.0", torch_npu="2.9.0", chip="910C")
    assert new["dynamic_spec_method"].startswith("needs engine >=0.24")
    assert new["alloc_large_segment_size_mb"].startswith("needs torch_npu >=2.10")
    assert new["hccl_intra_roce"] == "only on 910B, not on 910C"
    assert new["pinned-segments-are-refused-under-graphs"].startswith("needs torch_npu")
    assert new["launch_blocking"] == "not searched: tier 4"
    assert not new.keys() & {"reduce_sample", "weight_prefetch", "flashcomm", "alloc_page_size", "FULL_AND_PIECEWISE"}
    old = left_out(SPACE, "tier3", engine="0.22.0rc1", cann="8.0.0", torch_npu="2.7.1", chip="910C")
    assert old["reduce_sample"].startswith("needs engine >=0.23")
    assert old["alloc_page_size"].startswith("needs cann >=8.1")
    assert old["cudagraph_mode=FULL_AND_PIECEWISE"].startswith("needs cann >=8.5")
    assert old["report-a-allocator"] == "needs a knob or a value that is not here"
    later = left_out(SPACE, engine="0.24.0", chip="910C")
    assert later["flashcomm"].startswith("needs engine <0.24")
    assert later["weight_prefetch"].startswith("needs engine <0.24")
    assert later["pinned-segments-are-refused-under-graphs"] == "refuses by the version of torch_npu, not known here"


def test_a_newer_torch_npu_refuses_report_a_s_first_allocator_set() -> None:
    recipe = next(recipe for recipe in SPACE.recipes if recipe.name == "report-a-allocator")
    older = instantiate(SPACE, SPACE.stack.model_copy(update={"torch_npu": "2.9.0"})).space
    assert "pinned-segments-under-graphs" in older.settle(older.complete(recipe.values), known()).warnings[0]
    newer = instantiate(SPACE, SPACE.stack.model_copy(update={"torch_npu": "2.10.0"})).space
    with pytest.raises(InvalidCandidate) as caught:
        newer.settle(newer.complete(recipe.values), known())
    assert [problem.key for problem in caught.value.problems] == ["pinned-segments-are-refused-under-graphs"]


def test_tier_3_comes_by_name_and_constants_reach_the_plan() -> None:
    plain = instantiate(SPACE, SPACE.stack).space
    assert "report-a-final-with-mtp" not in {recipe.name for recipe in plain.recipes}
    names = ("moe_prefetch_token_threshold", "cudagraph_num_of_warmups", "hccl_deterministic", "combined_enable")
    space = instantiate(SPACE, SPACE.stack, names).space
    recipe = next(recipe for recipe in space.recipes if recipe.name == "report-a-final-with-mtp")
    settled = space.settle(space.complete(recipe.values), known())
    role = render(space, settled.candidate, known()).roles["server"]
    assert role.constants == {
        "vllm_ascend.ops.weight_prefetch:MOE_PREFETCH_TOKEN_THRESHOLD": 1,
        "vllm_ascend.platform:CUDAGRAPH_NUM_OF_WARMUPS": 3,
    }
    assert role.env["HCCL_DETERMINISTIC"] == "false"


def test_report_a_is_an_ordered_ladder() -> None:
    ladder = [recipe for recipe in SPACE.recipes if recipe.name.startswith("report-a-")]
    assert [recipe.name for recipe in ladder] == [
        "report-a-aiv",
        "report-a-aiv-static",
        "report-a-allocator",
        "report-a-jemalloc",
        "report-a-operator-cache",
        "report-a-prefetch",
        "report-a-host",
        "report-a-final-without-mtp",
        "report-a-mtp4",
        "report-a-final-with-mtp",
    ]


def test_report_b_s_layouts_launch() -> None:
    space = instantiate(SPACES[NAMES[1]], SPACES[NAMES[1]].stack, ("tier3",)).space
    about = known(MOE, devices=4)
    layouts = {}
    for recipe in space.recipes:
        if recipe.name.startswith("report-b-"):
            settled = space.settle(space.complete(recipe.values), about)
            argv = render(space, settled.candidate, about).roles["server"].argv
            tensor = argv[argv.index("--tensor-parallel-size") + 1]
            layouts[recipe.name] = (tensor, "--data-parallel-size" in argv, "--enable-expert-parallel" in argv)
    assert layouts == {
        "report-b-tp4": ("4", False, False),
        "report-b-ep4": ("4", False, True),
        "report-b-tp2-ep2": ("2", True, True),
        "report-b-nhr": ("4", False, True),
        "report-b-fused-gating": ("2", False, False),
        "report-b-experts": ("2", False, True),
        "report-b-collectives": ("2", False, True),
        "report-b-final": ("2", False, True),
    }


@pytest.mark.parametrize("name", NAMES)
def test_dead_settings_of_old_recipes_are_known(name: str) -> None:
    space = SPACES[name]
    here = {dead.key for dead in space.dead if dead.needs.missing(space.stack) is None}
    assert here >= {
        "env ASCEND_BUFFER_POOL",
        "env VLLM_ASCEND_ENABLE_TOPK_OPTIMIZE",
        "env VLLM_RPC_TIMEOUT",
        "--additional-config torchair_graph_config",
        "--additional-config ascend_scheduler_config",
        "--additional-config enable_static_kernel",
        "--additional-config lmhead_tensor_parallel_size",
        "--compilation-config cudagraph_num_of_warmups",
    }
    assert "--additional-config weight_prefetch_config" not in here
    units = {unit.key: (unit.unit, unit.low) for unit in space.units}
    assert units["env VLLM_RPC_TIMEOUT"] == ("ms", 10000)
    assert units["env VLLM_ENGINE_READY_TIMEOUT_S"][0] == "s"
