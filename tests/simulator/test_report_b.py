"""Mixtral on four 910B against field report B, and the causes behind its steps one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.domain.knobs import KnobValue
from tests.bench.published import Row
from tests.bench.report_b_rows import LAYOUTS, STEPS, idle_pct, model_of, recipe, rows, step_ms, tokens_per_s
from workers.simulator.device.collective_algorithm import algorithm_between_hosts
from workers.simulator.faults import EngineFailed
from workers.simulator.model.experts import bandwidth_use
from workers.simulator.model.system import load_system

FINAL = recipe("report-b-final")
NHR = "level0:NA;level1:NHR"


@pytest.mark.parametrize("row", [row for row in rows() if row.kind != "listed"], ids=lambda row: row.row)
def test_a_claimed_figure_is_within_five_percent(row: Row) -> None:
    assert abs(row.error_pct) <= 5


def test_what_is_not_claimed_says_why() -> None:
    assert all(row.note for row in rows() if row.kind == "listed")


@pytest.mark.parametrize("name", ["fused-gating", "experts", "collectives", "final"])
def test_no_step_is_faster_than_reading_its_weights(name: str) -> None:
    model = model_of(STEPS, recipe(f"report-b-{name}"))
    assert step_ms(model) > model.floor_ms(32)


def gain_ms(values: dict[str, KnobValue], knob: str, value: KnobValue = True, system: Path = STEPS) -> float:
    return step_ms(model_of(system, values)) - step_ms(model_of(system, {**values, knob: value}))


def test_one_launch_of_the_router_gains_the_same_under_each_layout() -> None:
    assert gain_ms({}, "fused_gating") == pytest.approx(gain_ms({"expert_parallel": True}, "fused_gating"))
    assert model_of(STEPS, {"fused_gating": True}).causes_ms(32)["router"] == pytest.approx(0.192)  # as published


def test_the_algorithm_gains_more_than_overlap_and_together_less_than_the_sum() -> None:
    base: dict[str, KnobValue] = {"expert_parallel": True}
    algorithm, overlap = gain_ms(base, "hccl_algo", NHR), gain_ms(base, "overlap_collectives")
    both = algorithm + gain_ms({**base, "hccl_algo": NHR}, "overlap_collectives")
    assert both < algorithm + overlap


def test_balance_pays_only_where_experts_are_whole() -> None:
    whole = {**FINAL, "dynamic_expert_batches": None}
    assert gain_ms(whole, "dynamic_expert_batches") > 0
    cut = model_of(STEPS, {"fused_gating": True})
    assert idle_pct(cut) == 0
    balanced = cut.config.model_copy(update={"balanced_experts": True})
    assert type(cut)(cut.system, balanced).decode_step_ms(32) == cut.decode_step_ms(32)


def test_moving_experts_evens_the_same_skew() -> None:
    whole: dict[str, KnobValue] = {"expert_parallel": True}
    assert gain_ms(whole, "dynamic_eplb") == pytest.approx(gain_ms(whole, "dynamic_expert_batches"))


@pytest.mark.parametrize(("size", "best"), [(25e6, "NHR"), (200e6, "ring")])
def test_the_suitable_algorithm_follows_the_size_of_a_message(size: float, best: str) -> None:
    system, config = load_system(STEPS), model_of(STEPS, {}).config
    use = {a: bandwidth_use(system, config.model_copy(update={"hccl_algo": a}), size) for a in ("NHR", "ring", "NB")}
    assert max(use, key=lambda name: use[name]) == best
    assert use["NB"] < bandwidth_use(system, config, size) < use[best]


def test_the_two_series_disagree_and_are_two_systems() -> None:
    layout = recipe("report-b-ep4")
    assert tokens_per_s(model_of(LAYOUTS, layout)) != pytest.approx(tokens_per_s(model_of(STEPS, layout)), rel=0.05)


@pytest.mark.parametrize("text", ["NHR", "level1:fast", "level0:NA,level1:NHR"])
def test_an_algorithm_that_hccl_does_not_know_ends_the_start(text: str) -> None:
    with pytest.raises(EngineFailed, match="EI0001"):
        algorithm_between_hosts({"HCCL_ALGO": text})


def test_nothing_is_chosen_inside_a_host() -> None:
    assert algorithm_between_hosts({"HCCL_ALGO": "level0:fullmesh"}) is None
    assert algorithm_between_hosts({"HCCL_ALGO": NHR}) == "NHR"
