"""The simulated SGLang and its router take every command line that the search spaces for SGLang write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autotune.domain.deployment import Deployment
from autotune.domain.deployment import facts as study_facts
from autotune.domain.instance import instantiate
from autotune.domain.knobs import BooleanKind, ChoiceKind, FloatKind, IntegerKind, Knob, KnobValue, ListKind
from autotune.domain.launch_plan import LaunchPlan, RolePlan, render
from autotune.domain.space import SearchSpace
from autotune.domain.workload import LoadLevel, Workload
from autotune.errors import InvalidCandidate
from search_spaces.catalog import SpaceCatalog
from workers.simulator.faults import ConfigRejected, EngineFailed
from workers.simulator.model.system import load_system
from workers.simulator.router.flags import parse_router_flags
from workers.simulator.sglang.configure import configure
from workers.simulator.sglang.flags import Flags, parse_flags

SYSTEM = load_system(Path(__file__).parents[2] / "workers/simulator/systems/deepseek-950dt.yaml")
SPACES = {
    name: instantiate(whole, whole.stack).space
    for name in ("sglang-ascend-910c", "sglang-ascend-950dt-pd")
    if (whole := SpaceCatalog().space(name))
}
WHOLE = {name: SpaceCatalog().space(name) for name in SPACES}
ADDRESSES = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]


def facts() -> dict[str, Any]:
    deployment = Deployment(
        template="any", model="any", devices=16, tensor_parallel=8, max_model_len=16384, model_facts={"experts": 256}
    )
    return study_facts(
        deployment,
        Workload(prompt_tokens=8192, output_tokens=64, levels=(LoadLevel(concurrency=12, requests=1),)),
    )


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


def extremes(knob: Knob) -> tuple[KnobValue, ...]:
    kind = knob.type
    match kind:
        case BooleanKind():
            return (True, False)
        case ChoiceKind():
            return kind.values
        case IntegerKind() | FloatKind():
            return (kind.low, kind.high)
        case ListKind():
            return (kind.items[: kind.max_length],)


def read(plan: LaunchPlan) -> dict[str, Flags]:
    """Flags of the servers; the router's are only parsed."""
    found = {}
    for name, role in plan.roles.items():
        if name == "router":
            parse_router_flags([*ADDRESSES, *role.argv])
        else:
            found[name] = parse_flags(["--model-path", "x", *role.argv])
    return found


def shown(space: SearchSpace, values: Mapping[str, KnobValue]) -> LaunchPlan:
    """As written, whatever rules say."""
    return as_written(space.model_copy(update={"rules": ()}), values)


def as_written(lax: SearchSpace, values: Mapping[str, KnobValue]) -> LaunchPlan:
    return render(lax, lax.settle(lax.complete(dict(values)), facts()).candidate, facts())


@pytest.mark.parametrize("name", list(SPACES))
def test_every_value_of_every_knob_is_parsed(name: str) -> None:
    space = WHOLE[name].model_copy(update={"rules": ()})
    written = set()
    for knob in space.knobs:
        lands = str(knob.lands)
        if lands in written:
            continue  # the same words for another role go through the same parser
        written.add(lands)
        for value in extremes(knob):
            plan = as_written(space, {knob.name: value})
            try:
                read(plan)
            except SystemExit as error:
                raise AssertionError(f"{knob.name} = {value!r} ends with status {error.code}") from error


@pytest.mark.parametrize("name", list(SPACES))
def test_roles_know_what_they_are(name: str) -> None:
    flags = read(shown(SPACES[name], {}))
    modes = {role: one.disaggregation_mode for role, one in flags.items()}
    assert modes == ({"server": "null"} if "910c" in name else {"prefill": "prefill", "decode": "decode"})
    assert all(one.tp_size == 8 and one.enable_metrics and one.enable_cache_report for one in flags.values())


def test_the_reports_recipes_start() -> None:
    space = SPACES["sglang-ascend-950dt-pd"]
    recipes = {recipe.name: recipe.values for recipe in space.recipes if recipe.name.startswith("report-c")}
    assert {"report-c-early", "report-c-tuned", "report-c-prefill-only", "report-c-decode-only"} <= recipes.keys()
    for values in recipes.values():
        settled = space.settle(space.complete(dict(values)), facts())
        plan = render(space, settled.candidate, facts())
        for role, flags in read(plan).items():
            configure(flags, plan.roles[role].env, [], SYSTEM)


@pytest.mark.parametrize("name", list(SPACES))
def test_every_settled_candidate_is_a_valid_command_line(name: str) -> None:
    space = SPACES[name]

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
    @given(st.fixed_dictionaries({knob.name: values_of(knob) for knob in space.knobs}))
    def check(values: dict[str, KnobValue]) -> None:
        try:
            settled = space.settle(space.complete(values), facts())
        except InvalidCandidate:
            assume(False)
            return
        plan = render(space, settled.candidate, facts())
        try:
            servers = read(plan)
        except SystemExit as error:
            raise AssertionError(f"refused with status {error.code}: {plan.roles}") from error
        for role, flags in servers.items():
            _configured(flags, plan.roles[role])

    check()


def _configured(flags: Flags, role: RolePlan) -> None:
    try:
        config = configure(flags, role.env, [], SYSTEM)
    except (ConfigRejected, EngineFailed):
        return  # refused in the engine's own words, before or on a device
    assert config.capture_sizes == tuple(sorted(set(config.capture_sizes)))
    assert all(size % (1 + config.draft_tokens) == 0 for size in config.capture_sizes)
    assert config.max_num_batched_tokens >= config.max_num_seqs
