"""Servers on virtual time: one alone, and prefill and decode apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.measurement import RequestSample, in_flight_peak
from autotune.domain.workload import LoadLevel, Workload
from tests.simulator.scheduling import SYSTEM, batcher_of
from workers.load.spec import LoadSpec
from workers.simulator.model.settings import Role
from workers.simulator.pd.transfer import transfer_ms
from workers.simulator.serving.batching import Batcher, Sequence
from workers.simulator.virtual.deployment import Deployment, SingleServer
from workers.simulator.virtual.load import EVENT_S, REQUEST_S, LoadTooLong, VirtualLoad
from workers.simulator.virtual.prefill_decode import HANDOVER_S, PrefillDecode
from workers.simulator.virtual.server import Progress, ServerDied, VirtualServer

MOST_ADVANCES = 20_000


def single(batcher: Batcher) -> SingleServer:
    return SingleServer(VirtualServer("server", batcher))


def apart(prefill_blocks: int = 1000, decode_blocks: int = 1000, drafts: int = 0) -> PrefillDecode:
    prefill = VirtualServer("prefill", batcher_of(prefill_blocks, role=Role.PREFILL))
    decode = VirtualServer("decode", batcher_of(decode_blocks, role=Role.DECODE, prefix_caching=False, drafts=drafts))
    return PrefillDecode(prefill, decode, SYSTEM)


def measured(deployment: Deployment, level: LoadLevel, prompt: int = 100, output: int = 20) -> list[RequestSample]:
    workload = Workload(prompt_tokens=prompt, output_tokens=output, levels=(level,), request_timeout_s=500.0)
    spec = LoadSpec(base_url="http://h:1", model="m", workload=workload, seed=1)
    polls = itertools.count()

    def stuck() -> bool:
        assert next(polls) < MOST_ADVANCES, "virtual time stands still"
        return False

    return list(VirtualLoad(deployment, spec, stuck).level(level))


def drained(advance: Callable[[float], list[Progress]], idle: Callable[[], bool]) -> list[Progress]:
    found: list[Progress] = []
    while not idle():
        found += advance(math.inf)
    return found


def test_a_run_gives_the_times_of_single_steps() -> None:
    whole, by_step = batcher_of(noise=True, drafts=2), batcher_of(noise=True, drafts=2)
    server = VirtualServer("server", whole)
    ends: list[float] = []
    now = 0.0
    for batcher_or_server in (server.submit, lambda sequence, _: by_step.add(sequence)):
        for seed in range(3):
            batcher_or_server(Sequence(50, 40, seed), 0.0)
    while (step := by_step.plan()) is not None:
        now += step.duration_ms / 1e3
        ends += [now for output in by_step.finish(step) if output.sequence.finished]
    found = drained(server.advance, lambda: server.idle)
    assert [progress.last_s for progress in found if progress.ended] == pytest.approx(
        ends, rel=1e-4
    )  # noise drifts by the clock
    assert sum(progress.tokens for progress in found) == 3 * 40


def test_a_step_that_has_begun_is_not_cut_short_by_an_arrival() -> None:
    server = VirtualServer("server", batcher_of())
    server.submit(Sequence(50, 1000, 1), 0.0)
    server.advance(0.0)  # the prompt
    begun = server.now_s
    (progress,) = server.advance(begun + 1e-6)
    assert progress.events == 1
    (progress,) = server.advance(server.now_s + 1.0)
    assert progress.events > 10
    assert progress.last_s == server.now_s
    assert server.now_s - begun > 1.0


def test_an_idle_server_begins_when_a_request_comes() -> None:
    server = VirtualServer("server", batcher_of())
    assert server.idle
    server.submit(Sequence(50, 2, 1), 5.0)
    assert server.now_s == 5.0
    first, last = drained(server.advance, lambda: server.idle)
    assert 5.0 < first.first_s < last.last_s
    assert (first.ended, last.ended) == (False, True)


def test_a_frozen_engine_takes_requests_and_answers_none() -> None:
    server = VirtualServer("server", batcher_of(), freeze_after_steps=3)
    server.submit(Sequence(50, 100, 1), 0.0)
    events = 0
    while server.now_s < 100.0:
        events += sum(progress.events for progress in server.advance(100.0))
    assert events == 3
    assert not server.idle


def test_a_server_without_memory_for_its_load_dies_by_name() -> None:
    server = VirtualServer("decode", batcher_of(gpu_memory_utilization=0.989))
    for seed in range(16):
        server.submit(Sequence(400, 10, seed), 0.0)
    with pytest.raises(ServerDied, match="NPU out of memory") as died:
        drained(server.advance, lambda: server.idle)
    assert died.value.name == "decode"


def test_a_lone_request_takes_prefill_transfer_and_decode_after_each_other() -> None:
    (sample,) = measured(apart(), LoadLevel(concurrency=1, requests=1))
    (whole,) = measured(single(batcher_of()), LoadLevel(concurrency=1, requests=1))
    assert sample.ttft_ms is not None
    assert whole.ttft_ms is not None
    way_ms = transfer_ms(SYSTEM, batcher_of().cost.config, 100) + HANDOVER_S * 1e3
    assert sample.ttft_ms == pytest.approx(whole.ttft_ms + way_ms)
    assert sample.tpot_ms == pytest.approx(whole.tpot_ms)
    assert (sample.completion_tokens, sample.events) == (20, 20)


def test_an_answer_of_one_token_comes_from_prefill_alone() -> None:
    deployment = apart()
    sequence = Sequence(100, 1, 1)
    deployment.submit(sequence, 0.0)
    (progress,) = drained(deployment.advance, lambda: deployment.idle)
    assert (progress.sequence, progress.tokens, progress.ended) == (sequence, 1, True)


def test_prompts_do_not_hold_up_answers_where_prefill_is_apart() -> None:
    level = LoadLevel(concurrency=8, requests=40)

    def slowest_ms(deployment: Deployment) -> float:
        return max(sample.tpot_ms or 0.0 for sample in measured(deployment, level, prompt=1000, output=60))

    assert slowest_ms(apart(4000, 4000)) < 0.8 * slowest_ms(single(batcher_of(4000)))


def test_a_dropped_request_leaves_every_server() -> None:
    deployment = apart()
    waiting, moving, running = (Sequence(100, 500, seed) for seed in range(3))
    deployment.submit(running, 0.0)
    while not any(progress.sequence is running for progress in deployment.advance(math.inf)):
        pass
    deployment.submit(moving, deployment.now_s)
    deployment.advance(deployment.now_s)
    deployment.submit(waiting, deployment.now_s)
    for sequence in (waiting, moving, running):
        deployment.drop(sequence)
    drained(deployment.advance, lambda: deployment.idle)
    assert deployment.idle


@settings(max_examples=40, deadline=None)
@given(
    prefill_blocks=st.integers(8, 40),
    decode_blocks=st.integers(10, 60),
    concurrency=st.integers(1, 12),
    requests=st.integers(1, 30),
    rate=st.one_of(st.none(), st.floats(1.0, 50.0)),
    drafts=st.sampled_from([0, 3]),
)
def test_every_request_gets_through_two_servers_however_small(
    prefill_blocks: int, decode_blocks: int, concurrency: int, requests: int, rate: float | None, drafts: int
) -> None:
    deployment = apart(prefill_blocks, decode_blocks, drafts)
    level = LoadLevel(concurrency=concurrency, requests=requests, rate_per_s=rate)
    samples = measured(deployment, level)
    assert len(samples) == requests
    assert in_flight_peak(samples) <= concurrency
    assert deployment.idle
    for sample in samples:
        assert sample.error is None
        assert sample.completion_tokens == 20
        assert sample.ttft_ms is not None
        assert sample.ttft_ms >= (REQUEST_S + EVENT_S + HANDOVER_S) * 1e3


def test_two_servers_of_which_one_hangs_do_not_stop_the_clock() -> None:
    frozen = VirtualServer("decode", batcher_of(role=Role.DECODE, prefix_caching=False), freeze_after_steps=5)
    deployment = PrefillDecode(VirtualServer("prefill", batcher_of(role=Role.PREFILL)), frozen, SYSTEM)
    workload = Workload(
        prompt_tokens=100,
        output_tokens=50,
        levels=(LoadLevel(concurrency=4, requests=400),),
        request_timeout_s=5.0,
    )
    spec = LoadSpec(base_url="http://h:1", model="m", workload=workload, seed=1)
    with pytest.raises(LoadTooLong):
        VirtualLoad(deployment, spec, lambda: False).level(workload.levels[0], limit_s=60.0)
