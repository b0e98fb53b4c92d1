"""The 910C search space and its template: they hold together, and the simulator takes all that they render."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autotune.domain.deployment import Deployment
from autotune.domain.deployment import facts as study_facts
from autotune.domain.instance import instantiate
from autotune.domain.knobs import (
    BooleanKind,
    ChoiceKind,
    EnvFragment,
    EnvVar,
    FloatKind,
    IntegerKind,
    Knob,
    KnobValue,
    ListKind,
)
from autotune.domain.launch_plan import RolePlan, render
from autotune.domain.template import is_denied_env
from autotune.domain.workload import LoadLevel, Workload
from autotune.errors import InvalidCandidate
from search_spaces.catalog import SpaceCatalog
from workers.host_templates import HostTemplates
from workers.simulator.boot import read_command
from workers.simulator.faults import ConfigRejected, EngineFailed
from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import load_system
from workers.simulator.start.booting import Booted, NotStarted
from workers.simulator.vllm.configure import configure
from workers.simulator.vllm.flags import parse_flags

ROOT = Path(__file__).parents[2]
WHOLE = SpaceCatalog().space("vllm-ascend-910c")
SPACE = instantiate(WHOLE, WHOLE.stack).space
NAMED = instantiate(WHOLE, WHOLE.stack, ("tier3",)).space
SYSTEM_FILE = ROOT / "workers/simulator/systems/qwen3.5-35b-a3b-910c.yaml"
SYSTEM = load_system(SYSTEM_FILE)


def facts(
    concurrency: tuple[int, ...] = (1, 4, 8), tensor_parallel: int = 2, max_model_len: int | None = 4096
) -> dict[str, Any]:
    deployment = Deployment(
        template="simulated-910c",
        model="Qwen3.5-35B-A3B",
        devices=tensor_parallel,
        tensor_parallel=tensor_parallel,
        max_model_len=max_model_len,
    )
    levels = tuple(LoadLevel(concurrency=c, requests=1) for c in concurrency)
    return study_facts(deployment, Workload(prompt_tokens=1024, output_tokens=512, levels=levels))


def plan(values: Mapping[str, KnobValue], about: Mapping[str, Any]) -> RolePlan:
    settled = SPACE.settle(SPACE.complete(dict(values)), about)
    return render(SPACE, settled.candidate, about).roles["server"]


def named_plan(values: Mapping[str, KnobValue], about: Mapping[str, Any]) -> RolePlan:
    """The plan where the knobs of tier 3 are included."""
    settled = NAMED.settle(NAMED.complete(dict(values)), about)
    return render(NAMED, settled.candidate, about).roles["server"]


def config_of(role: RolePlan) -> ServingConfig:
    libraries = [f"/lib/lib{name}.so" for name in role.preload]
    return configure(parse_flags(["serve", "x", *role.argv]), role.env, libraries, SYSTEM)


def start(role: RolePlan) -> Booted:
    """The engine as it is ready to serve; NotStarted carries its log."""
    libraries = [f"/lib/lib{name}.so" for name in role.preload]
    out = io.StringIO()
    try:
        return read_command(["serve", str(SYSTEM_FILE), *role.argv], role.env, out).start(libraries)
    except NotStarted as error:
        error.add_note(out.getvalue())
        raise


def log_of(role: RolePlan) -> str:
    """What an engine says that does not start."""
    with pytest.raises(NotStarted) as failure:
        start(role)
    return "".join(failure.value.__notes__)


def values_of(knob: Knob) -> st.SearchStrategy[KnobValue]:
    kind = knob.type
    found: st.SearchStrategy[KnobValue]
    match kind:
        case BooleanKind():
            found = st.booleans()
        case ChoiceKind():
            found = st.sampled_from(kind.values)
        case IntegerKind():
            found = st.integers(kind.low, kind.high)
        case FloatKind():
            found = st.floats(kind.low, kind.high)
        case ListKind():
            found = st.just(kind.items[: kind.max_length])
    return st.none() | found if knob.unset or knob.when else found


candidates = st.fixed_dictionaries({knob.name: values_of(knob) for knob in SPACE.knobs})


STARTING = [recipe.name for recipe in NAMED.recipes if recipe.name.startswith("report-a")]


def test_a_buffer_from_a_larger_chip_does_not_fit() -> None:
    values = next(recipe.values for recipe in NAMED.recipes if recipe.name == "report-c-buffer")
    assert "NPU out of memory. Tried to allocate" in log_of(named_plan(values, facts()))


@pytest.mark.parametrize("name", ["baseline", *STARTING])
def test_baseline_and_recipes_start(name: str) -> None:
    values = next((recipe.values for recipe in NAMED.recipes if recipe.name == name), {})
    booted = start(named_plan(values, facts()))
    assert booted.cost.config.tensor_parallel == 2
    assert booted.memory.fits_load(8)


def test_what_is_unset_leaves_no_trace() -> None:
    role = plan({}, facts())
    assert role.env == {}
    assert role.preload == ()
    assert "--speculative-config" not in role.argv
    assert "--additional-config" not in role.argv


def test_coupled_settings_are_derived() -> None:
    final = next(recipe.values for recipe in SPACE.recipes if recipe.name == "report-a-mtp4")
    role = plan(final, facts())
    config = config_of(role)
    assert config.capture_sizes == (5, 20, 40)
    assert config.local_world_size == 2
    assert config.jemalloc
    assert config.static_kernel
    assert config.pa_shapes == ()  # without effect under speculation
    assert config_of(plan({**final, "mtp_draft_length": None}, facts())).pa_shapes == (1, 4, 8)


def test_page_size_is_completed_and_static_kernels_follow_the_graph_mode() -> None:
    settled = SPACE.settle(SPACE.complete({"alloc_page_size": "1g"}), facts())
    assert settled.candidate.values["alloc_expandable_segments"] is True
    assert settled.repairs == ("page-options-need-expandable-segments",)
    settled = SPACE.settle(SPACE.complete({"static_kernel": True, "cudagraph_mode": "PIECEWISE"}), facts())
    assert "static_kernel" not in settled.candidate.values


def test_rules_warn_with_their_reason() -> None:
    values: dict[str, KnobValue] = {"hccl_buffsize_mb": 2048, "cpu_binding": True, "cpu_affinity_conf": 2}
    warnings = SPACE.settle(SPACE.complete({**values, "max_num_seqs": 8}), facts((1, 16))).warnings
    names = [warning.split(":")[0] for warning in warnings]
    assert sorted(names) == ["memory-outside-the-engine", "one-binding-of-cores", "seats-for-every-stream"]


def test_a_context_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(InvalidCandidate):
        SPACE.settle(SPACE.complete({}), {**facts(max_model_len=300_000), "model_facts": {"context": 262_144}})
    role = plan({}, facts(max_model_len=300_000))  # not told, the space leaves it to the engine
    with pytest.raises(ConfigRejected, match="max_model_len"):
        config_of(role)


def test_the_models_own_context_holds_where_the_study_names_none() -> None:
    assert "--max-model-len" not in plan({}, facts(max_model_len=None)).argv
    assert "--max-model-len" in plan({}, facts()).argv


@pytest.mark.parametrize(
    "values",
    [
        {"hccl_buffsize_mb": 4096},
        {"flashcomm": True},
        {"matmul_allreduce": True},
        {"mtp_draft_length": 8, "max_num_seqs": 256},
    ],
    ids=str,
)
def test_crashes_stay_searchable(values: dict[str, KnobValue]) -> None:
    role = named_plan(values, {**facts(), "model_facts": {"experts": 0}})
    assert "Engine core initialization failed" in log_of(role)


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ({"task_queue": 2}, []),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 256}, ["--max-num-seqs", "512"]),
        ({"chunked_prefill": False, "max_num_batched_tokens": 1024}, ["--no-enable-chunked-prefill"]),
        ({"enable_sp": True, "mtp_draft_length": 2}, []),
    ],
    ids=str,
)
def test_what_a_rule_refuses_the_engine_refuses(values: dict[str, KnobValue], flags: list[str]) -> None:
    with pytest.raises(InvalidCandidate):
        plan(values, facts())
    lax = SPACE.model_copy(update={"rules": ()})
    role = render(lax, lax.settle(lax.complete(values), facts()).candidate, facts()).roles["server"]
    assert set(flags) <= set(role.argv)
    assert log_of(role)


def test_nothing_lands_in_a_denied_variable() -> None:
    landings = [knob.lands for knob in WHOLE.knobs] + [setting.lands for setting in WHOLE.derived]
    names = [lands.name for lands in landings if isinstance(lands, EnvVar | EnvFragment)]
    assert len(names) > 10
    assert not any(map(is_denied_env, names))


def test_every_knob_rule_and_recipe_says_where_it_comes_from() -> None:
    sources = [knob.source for knob in WHOLE.knobs] + [rule.source for rule in WHOLE.rules]
    assert all(sources + [recipe.source for recipe in WHOLE.recipes])


@settings(max_examples=150, deadline=None)
@given(
    candidates,
    st.lists(st.integers(1, 1024), min_size=1, max_size=6, unique=True).map(lambda c: tuple(sorted(c))),
    st.sampled_from([1, 2, 4, 8]),
)
def test_every_settled_candidate_is_a_valid_command_line(
    values: dict[str, KnobValue], concurrency: tuple[int, ...], ranks: int
) -> None:
    about = facts(concurrency, ranks)
    try:
        role = plan(values, about)
    except InvalidCandidate:
        assume(False)
        return
    try:
        flags = parse_flags(["serve", "x", *role.argv])
    except SystemExit as error:
        raise AssertionError(f"refused with status {error.code}: {role.argv}") from error
    if values["cudagraph_mode"] != "NONE" and _smallest_step(role) > flags.max_num_batched_tokens:
        with pytest.raises(ConfigRejected, match="No valid cudagraph sizes"):
            configure(flags, role.env, [], SYSTEM)
        return
    config = configure(flags, role.env, [], SYSTEM)
    assert config.hccl_buffsize_mb == (values["hccl_buffsize_mb"] if ranks > 1 else None)


def _smallest_step(role: RolePlan) -> int:
    """The smallest captured step in tokens; more than a step may hold is refused."""
    sizes = json.loads(role.argv[role.argv.index("--compilation-config") + 1])["cudagraph_capture_sizes"]
    rows = 1
    if "--speculative-config" in role.argv:
        content = json.loads(role.argv[role.argv.index("--speculative-config") + 1])
        rows += content["num_speculative_tokens"]
    return min(-(-int(size) // rows) * rows for size in sizes)


@pytest.mark.parametrize("name", ["simulated-910c", "simulated-910b"])
def test_the_templates_name_files_that_exist(name: str) -> None:
    template = HostTemplates().template(name)
    assert template.simulated
    for path in (*template.models.values(), *template.libraries.values()):
        assert path.startswith("package:")
    for path in template.models.values():
        load_system(ROOT / path.removeprefix("package:"))
    assert json.dumps(template.roles["server"].argv).count("{") == 5


MIXTURE_WHOLE = SpaceCatalog().space("vllm-ascend-910b")
MIXTURE_SPACE = instantiate(MIXTURE_WHOLE, MIXTURE_WHOLE.stack, ("tier3",)).space
MIXTURE = load_system(ROOT / "workers/simulator/systems/mixtral-8x7b-910b.yaml")
MODEL_FACTS = {"experts": 8, "experts_per_token": 2, "shared_experts": 1, "hidden_size": 4096, "mla": True}


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries({knob.name: values_of(knob) for knob in MIXTURE_SPACE.knobs if knob.tier < 3}))
def test_everything_that_the_other_chips_space_renders_is_taken(values: dict[str, KnobValue]) -> None:
    """Also where the model makes every part of the space apply."""
    about = {**facts((8, 32), 4), "model_facts": MODEL_FACTS}
    try:
        candidate = MIXTURE_SPACE.settle(MIXTURE_SPACE.complete(values), about).candidate
    except InvalidCandidate:
        assume(False)
        return
    role = render(MIXTURE_SPACE, candidate, about).roles["server"]
    flags = parse_flags(["serve", "x", *role.argv])
    if candidate.values.get("mtp_draft_length") is not None:
        with pytest.raises(ConfigRejected, match="Unsupported speculative method"):  # the model has no draft heads
            configure(flags, role.env, [], MIXTURE)
        return
    config = configure(flags, role.env, [], MIXTURE)
    assert config.expert_parallel is (candidate.values.get("expert_parallel") is True)
    assert config.prefix_caching is (candidate.values.get("prefix_caching") is not False)
    assert config.async_scheduling is (candidate.values.get("async_scheduling") is not False)
    assert config.chunked_prefill is (candidate.values.get("chunked_prefill") is not False)
    assert config.multi_stream is (candidate.values.get("multistream_overlap_shared_expert") is True)
    assert config.balanced_experts is (candidate.values.get("dynamic_eplb") is True)


def test_settings_of_the_layout_and_the_cache_are_read() -> None:
    words = "-tp 2 -dp 2 --enable-expert-parallel --block-size 64 --no-enable-prefix-caching --no-async-scheduling"
    flags = parse_flags(["serve", "x", *words.split(), "--enable-prompt-tokens-details"])
    config = configure(flags, {"HCCL_ALGO": "level0:NA;level1:ring"}, [], MIXTURE)
    assert flags.enable_prompt_tokens_details
    assert (config.tensor_parallel, config.data_parallel, config.expert_parallel) == (2, 2, True)
    assert (config.block_size, config.prefix_caching, config.async_scheduling) == (64, False, False)
    assert config.hccl_algo == "ring"
    plain = configure(parse_flags(["serve", "x"]), {}, [], MIXTURE)
    assert (plain.data_parallel, plain.expert_parallel, plain.block_size, plain.hccl_algo) == (1, False, 128, None)
    assert plain.prefix_caching
    assert plain.chunked_prefill


def test_more_ranks_than_devices_are_refused() -> None:
    flags = parse_flags(["serve", "x", "-tp", "2", "-dp", "2"])
    configure(flags, {"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3"}, [], MIXTURE)
    with pytest.raises(ConfigRejected, match=r"must be less than or equal to the number of visible devices \(2\)"):
        configure(flags, {"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, [], MIXTURE)


def test_numbers_of_the_platform_are_numbers() -> None:
    with pytest.raises(EngineFailed, match="invalid literal for int"):
        configure(parse_flags(["serve", "x"]), {"VLLM_ASCEND_ENABLE_NZ": "yes"}, [], MIXTURE)


def test_a_block_size_that_the_engine_lacks_ends_with_status_two() -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_flags(["serve", "x", "--block-size", "100"])
