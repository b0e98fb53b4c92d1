"""The 910C search space and its template: they hold together, and the simulator takes all that they render."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
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
from autotune.domain.template import LaunchTemplate, is_denied_env
from autotune.domain.workload import LoadLevel, Workload
from autotune.errors import InvalidCandidate
from search_spaces.catalog import SpaceCatalog
from workers.simulator.faults import ConfigRejected, DeviceOutOfMemory, EngineFailed
from workers.simulator.model.memory_model import MemoryModel
from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import load_system
from workers.simulator.start.start_up import start_engine
from workers.simulator.vllm.configure import configure
from workers.simulator.vllm.flags import parse_flags
from workers.simulator.vllm.narration import VllmNarrator
from workers.simulator.vllm.server_log import ServerLog

ROOT = Path(__file__).parents[2]
WHOLE = SpaceCatalog().space("vllm-ascend-910c")
SPACE = instantiate(WHOLE, WHOLE.stack).space
NAMED = instantiate(WHOLE, WHOLE.stack, ("tier3",)).space
TEMPLATE = LaunchTemplate.model_validate(yaml.safe_load((ROOT / "workers/templates/simulated-910c.yaml").read_text()))
SYSTEM = load_system(ROOT / "workers/simulator/systems/qwen3.5-35b-a3b-910c.yaml")


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
    role = named_plan(values, facts())
    memory = MemoryModel(SYSTEM, config_of(role))
    with pytest.raises(DeviceOutOfMemory):
        start_engine(memory, VllmNarrator(parse_flags(["serve", "x", *role.argv]), role.env, ServerLog(sys.stderr)))


@pytest.mark.parametrize("name", ["baseline", *STARTING])
def test_baseline_and_recipes_start(name: str) -> None:
    values = next((recipe.values for recipe in NAMED.recipes if recipe.name == name), {})
    role = named_plan(values, facts())
    config = config_of(role)
    assert config.tensor_parallel == 2
    flags = parse_flags(["serve", "x", *role.argv])
    memory = MemoryModel(SYSTEM, config)
    start_engine(memory, VllmNarrator(flags, role.env, ServerLog(sys.stderr)))
    assert memory.fits_load(8)


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
    memory = MemoryModel(SYSTEM, config_of(role))
    with pytest.raises(EngineFailed):
        start_engine(memory, VllmNarrator(parse_flags(["serve", "x", *role.argv]), role.env, ServerLog(sys.stderr)))


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
    with pytest.raises((ConfigRejected, EngineFailed)):
        start_engine(
            MemoryModel(SYSTEM, config_of(role)),
            VllmNarrator(parse_flags(["serve", "x", *role.argv]), role.env, ServerLog(sys.stderr)),
        )


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


def test_the_template_names_files_that_exist() -> None:
    assert TEMPLATE.simulated
    for path in (*TEMPLATE.models.values(), *TEMPLATE.libraries.values()):
        assert path.startswith("package:")
    for path in TEMPLATE.models.values():
        load_system(ROOT / path.removeprefix("package:"))
    assert json.dumps(TEMPLATE.roles["server"].argv).count("{") == 5
