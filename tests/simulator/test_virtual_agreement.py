"""Both forms of an endpoint keep one schedule: times of the engine itself, which no busy machine moves."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import pytest

from autotune.domain.workload import LoadLevel, Workload
from tests.simulator.server_process import PLAIN, SEED, SYSTEM, counter, serving
from workers.load.prompts import PromptSource
from workers.load.spec import LoadSpec
from workers.simulator.boot import read_command
from workers.simulator.serving.batching import Batcher
from workers.simulator.serving.noise import launch_noise
from workers.simulator.variables import NOISE
from workers.simulator.virtual.deployment import SingleServer
from workers.simulator.virtual.load import EVENT_S, REQUEST_S, VirtualLoad
from workers.simulator.virtual.server import VirtualServer

REQUESTS = 3
DRAFTING = (
    *("-tp", "2", "--max-num-seqs", "16", "--max-model-len", "4096"),
    *("--compilation-config", '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[5,20,40]}'),
    *("--speculative-config", '{"method":"mtp","num_speculative_tokens":4}'),
)
ENV = {**SEED, NOISE: "off"}
TTFT = "time_to_first_token_seconds_sum"
TPOT = "request_time_per_output_token_seconds_sum"


def spec() -> LoadSpec:
    workload = Workload(
        prompt_tokens=600,
        output_tokens=60,
        levels=(LoadLevel(concurrency=1, requests=REQUESTS),),
        warmup_requests=1,
    )
    return LoadSpec(base_url="http://h:1", model="sim", workload=workload, seed=3)


def on_virtual_time(flags: tuple[str, ...]) -> list[tuple[float, float]]:
    """TTFT without the client's share, and TPOT, in ms, of each request."""
    boot = read_command(["serve", str(SYSTEM), *flags], ENV, io.StringIO())
    booted = boot.start([])
    batcher = Batcher(booted.cost, booted.memory, launch_noise(ENV, "any"))
    load = VirtualLoad(SingleServer(VirtualServer("server", batcher)), spec(), lambda: False)
    samples = load.level(spec().workload.levels[0])
    client_ms = (REQUEST_S + EVENT_S) * 1e3
    return [(s.ttft_ms - client_ms, s.tpot_ms) for s in samples if s.ttft_ms is not None and s.tpot_ms is not None]


def on_the_wall_clock(client: httpx.Client) -> list[tuple[float, float]]:
    """The same as the server's own metrics count it: on its schedule."""
    found = []
    for body in PromptSource(spec()).bodies("c1", REQUESTS):
        before = counter(client, TTFT), counter(client, TPOT)
        answer = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 200
        found.append(((counter(client, TTFT) - before[0]) * 1e3, (counter(client, TPOT) - before[1]) * 1e3))
    return found


@pytest.mark.parametrize("flags", [PLAIN, DRAFTING], ids=["plain", "drafts"])
def test_requests_take_as_long_in_both_forms(tmp_path: Path, flags: tuple[str, ...]) -> None:
    virtual = on_virtual_time(flags)
    assert len(virtual) == REQUESTS
    with serving(tmp_path / "log", *flags, env=ENV) as (client, _):
        real = on_the_wall_clock(client)
    # A process that was stopped for a second takes up its schedule anew: one undisturbed request is proof enough.
    errors = [
        max(abs(ours[0] / theirs[0] - 1), abs(ours[1] / theirs[1] - 1))
        for ours, theirs in zip(virtual, real, strict=True)
    ]
    assert min(errors) < 0.001, errors
