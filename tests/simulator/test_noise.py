"""Randomness of a launch: what repeats, what differs, and that means stay where the cost model puts them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.simulator.model.cost_model import CACHE_MISS_MS, CostModel
from workers.simulator.model.settings import ServingConfig
from workers.simulator.model.system import load_system
from workers.simulator.serving.noise import (
    BLOCK,
    HOST_MOST,
    LAUNCH_SIGMA,
    STEP_SIGMA,
    WARM_AFTER,
    Noise,
    host_factor,
    launch_noise,
    launch_seed,
)
from workers.simulator.variables import HOST, NOISE, SEED

SYSTEM = load_system(Path(__file__).parents[2] / "workers/simulator/systems/qwen3.5-35b-a3b-910c.yaml")
MODEL = CostModel(SYSTEM, ServingConfig(tensor_parallel=2, capture_sizes=(1, 4, 8)))
CACHED = CostModel(SYSTEM, MODEL.config.model_copy(update={"aclnn_cache_limit": 100_000}))
MEAN = MODEL.decode_step_ms(1)


def steps(noise: Noise, count: int, model: CostModel = CACHED, start_s: float | None = None) -> NDArray[np.float64]:
    return noise.steps_ms(model, np.full(count, MEAN), start_s)


def warm(noise: Noise) -> Noise:
    steps(noise, WARM_AFTER)
    return noise


def test_a_launch_repeats_by_its_seed() -> None:
    assert np.array_equal(steps(Noise("7"), 500), steps(Noise("7"), 500))
    assert not np.array_equal(steps(Noise("7"), 500), steps(Noise("8"), 500))
    assert launch_seed({SEED: "s"}, 1) == "s"
    assert launch_seed({}, 1) != launch_seed({}, 2)


@pytest.mark.parametrize("parts", [(2500,), (1, 700, 1, 1500, 298), (BLOCK, BLOCK, 452)])
def test_steps_draw_the_same_alone_and_together(parts: tuple[int, ...]) -> None:
    alone, together = Noise("7"), Noise("7")
    single = [alone.step_ms(MODEL, MEAN) for _ in range(sum(parts))]
    assert np.concatenate([steps(together, n, MODEL) for n in parts]) == pytest.approx(single, rel=1e-4)


def test_steps_that_did_not_take_place_give_their_draws_back() -> None:
    plain, returning = Noise("7"), Noise("7")
    expected = steps(plain, 3000)
    first = steps(returning, 2900)
    returning.give_back(first[100:])
    assert np.concatenate([first[:100], steps(returning, 2900)]) == pytest.approx(expected, rel=1e-4)


def test_launches_keep_the_mean_and_differ_by_one_percent() -> None:
    factors = np.array([Noise(str(seed)).launch_factor for seed in range(4000)])
    assert factors.mean() == pytest.approx(1, abs=0.0005)
    assert factors.std() == pytest.approx(LAUNCH_SIGMA, rel=0.15)
    assert np.mean(factors > 1 + 3.1 * LAUNCH_SIGMA) == pytest.approx(0.01, abs=0.005)  # the slow ones


def test_outliers_and_drift_leave_the_mean_where_it_was() -> None:
    """Within a launch by 0.2 %, over launches by 0.02 %; a launch here is a quarter of an hour."""
    shares = []
    for seed in range(60):
        noise = warm(Noise(str(seed)))
        shares.append(steps(noise, 60_000).mean() / (MEAN * noise.launch_factor))
    assert np.abs(np.array(shares) - 1).max() < 0.002
    assert np.mean(shares) == pytest.approx(1, abs=0.0002)


def test_a_launch_drifts_slowly() -> None:
    noise = warm(Noise("3"))
    minutes = np.array([np.median(steps(noise, 400, start_s=60.0 * minute)) for minute in range(20)]) / MEAN
    assert 0.005 < minutes.max() - minutes.min() < 0.012
    spread = steps(noise, 400, start_s=0.0) / MEAN
    assert np.median(np.abs(spread - np.median(spread))) == pytest.approx(0.6745 * STEP_SIGMA, rel=0.2)


def test_the_first_steps_are_slow() -> None:
    means = np.mean([steps(Noise(str(seed)), 3000) / Noise(str(seed)).launch_factor for seed in range(100)], axis=0)
    assert means[0] / MEAN == pytest.approx(1.27, abs=0.01)
    assert 1.01 < means[50:150].mean() / MEAN < 1.05
    assert means[2500:].mean() / MEAN == pytest.approx(1, abs=0.002)


def test_few_steps_are_much_too_long() -> None:
    times = steps(warm(Noise("5")), 50_000) / MEAN
    assert 4 <= np.sum(times > 4) <= 20
    assert np.sum(times > 4) == np.sum(times > 1.1)
    prompt = warm(Noise("5")).steps_ms(CACHED, np.full(50_000, 2000.0))
    assert prompt.max() < 2250  # a step of two seconds is not made ten seconds long


def test_planning_an_operator_again_costs_its_time() -> None:
    times = steps(warm(Noise("6")), 20_000, MODEL)
    missed = np.sum((times > MEAN + 0.8 * CACHE_MISS_MS) & (times < 3 * MEAN))
    assert missed / 20_000 == pytest.approx(MODEL.cache_miss_share, rel=0.3)


def test_hosts_differ_by_their_names() -> None:
    assert host_factor(None) == 1
    factors = [host_factor(f"host-{number}") for number in range(200)]
    assert max(abs(factor - 1) for factor in factors) <= HOST_MOST
    assert max(factors) - min(factors) > HOST_MOST
    named, plain = launch_noise({HOST: "host-1"}, "7"), launch_noise({}, "7")
    assert named.launch_factor == pytest.approx(plain.launch_factor * host_factor("host-1"))


def test_without_noise_every_step_takes_its_mean() -> None:
    noise = launch_noise({NOISE: "off", HOST: "host-1"}, "7")
    assert noise.launch_factor == 1
    assert noise.step_ms(MODEL, MEAN) == MEAN
    assert np.array_equal(steps(noise, 100, MODEL), np.full(100, MEAN))
    noise.give_back(np.full(50, MEAN))
