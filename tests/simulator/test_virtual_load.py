"""The load on virtual time: order, pauses, limits and figures of the real load process."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.measurement import RequestSample, in_flight_peak
from autotune.domain.workload import Arrivals, LoadLevel, Workload
from workers.load.prompts import PromptSource
from workers.load.refusal import BadRequestsFile, PromptsExhausted
from workers.load.schedule import due_times_s
from workers.load.spec import LoadSpec
from workers.simulator.serving.batching import Sequence
from workers.simulator.serving.noise import request_seed
from workers.simulator.virtual.load import EVENT_S, REQUEST_S, SEND_S, LoadCancelled, LoadTooLong, VirtualLoad
from workers.simulator.virtual.prompts import VirtualPrompts
from workers.simulator.virtual.server import Progress

STEP_S = 0.010


class Metronome:
    """A deployment whose every step takes 10 ms and brings each request one token. At most `seats` run at a time."""

    max_model_len = 1000
    block_size = 16
    drafts = True

    def __init__(self, seats: int = 1000) -> None:
        self.now_s = 0.0
        self.seats = seats
        self.inside: list[Sequence] = []
        self.most_inside = 0
        self.resets = 0
        self.prompts: list[int] = []

    @property
    def idle(self) -> bool:
        return not self.inside

    def reset_prefix_cache(self) -> None:
        self.resets += 1

    def submit(self, sequence: Sequence, at_s: float) -> None:
        if self.idle:
            self.now_s = max(self.now_s, at_s)
        assert at_s <= self.now_s
        self.inside.append(sequence)
        self.prompts.append(sequence.prompt_tokens)
        self.most_inside = max(self.most_inside, len(self.inside))

    def drop(self, sequence: Sequence) -> None:
        self.inside = [other for other in self.inside if other is not sequence]

    def advance(self, until_s: float) -> list[Progress]:
        found: list[Progress] = []
        while True:
            self.now_s += STEP_S
            running = self.inside[: self.seats]
            for sequence in running:
                sequence.generated += 1
                found.append(Progress(sequence, 1, 1, self.now_s, self.now_s, sequence.finished))
            self.inside = [sequence for sequence in self.inside if not sequence.finished]
            if self.now_s >= until_s or any(sequence.finished for sequence in running):
                return found


def spec(*levels: LoadLevel, seed: int = 1, study_seed: int = 2, **changes: Any) -> LoadSpec:
    fields: dict[str, Any] = {"prompt_tokens": 32, "output_tokens": 5, "levels": levels, "request_timeout_s": 20.0}
    workload = Workload(**{**fields, **changes})
    return LoadSpec(base_url="http://h:1", model="m", workload=workload, seed=seed, study_seed=study_seed)


def run(deployment: Metronome, load: LoadSpec) -> list[tuple[RequestSample, ...]]:
    driver = VirtualLoad(deployment, load, lambda: False)
    driver.warm_up()
    return [driver.level(level) for level in load.workload.levels]


def closed(concurrency: int, requests: int) -> LoadLevel:
    return LoadLevel(concurrency=concurrency, requests=requests)


def test_a_lone_stream_sees_steps_and_the_clients_own_share() -> None:
    (samples,) = run(Metronome(), spec(closed(1, 3)))
    assert [sample.index for sample in samples] == [0, 1, 2]
    for sample in samples:
        assert sample.error is None
        assert sample.ttft_ms == pytest.approx((REQUEST_S + STEP_S + EVENT_S) * 1e3)
        assert sample.tpot_ms == pytest.approx(STEP_S * 1e3)
        assert sample.e2e_ms == pytest.approx((REQUEST_S + 5 * STEP_S + EVENT_S) * 1e3)
        assert (sample.prompt_tokens, sample.completion_tokens, sample.events) == (32, 5, 5)
        assert sample.finish_reason == "length"
        assert sample.schedule_lag_ms is None
    assert samples[0].t_send_s == 0
    for before, after in itertools.pairwise(samples):
        assert after.t_send_s > before.t_last_s


def test_a_closed_loop_keeps_its_streams_busy() -> None:
    deployment = Metronome()
    (samples,) = run(deployment, spec(closed(4, 22)))
    assert len(samples) == 22
    assert in_flight_peak(samples) == 4
    assert [sample.t_send_s for sample in samples] == sorted(sample.t_send_s for sample in samples)
    assert [round(sample.t_send_s, 6) for sample in samples[:4]] == [round(i * SEND_S, 6) for i in range(4)]
    # A request that comes while a step runs waits for the next one: it starts anew with the others' decoding.
    assert max(sample.ttft_ms or 0 for sample in samples) < 2 * STEP_S * 1e3 + 2


def test_a_request_that_comes_as_another_ends_misses_the_step_that_begins_then() -> None:
    deployment = Metronome()
    (samples,) = run(deployment, spec(closed(2, 4)))
    late = samples[2]
    assert late.ttft_ms is not None
    assert STEP_S * 1e3 < late.ttft_ms < 2 * STEP_S * 1e3


def test_levels_follow_each_other_each_with_an_empty_cache() -> None:
    deployment = Metronome()
    first, second = run(deployment, spec(closed(1, 2), closed(3, 3)))
    assert (len(first), len(second)) == (2, 3)
    assert deployment.resets == 2  # the warm-up leaves it alone
    assert second[0].t_send_s == 0


def test_a_shared_prefix_is_sent_alone_before_the_warm_up_and_each_level() -> None:
    deployment = Metronome()
    load = spec(closed(1, 1), closed(2, 2), shared_prefix_tokens=20, warmup_requests=1)
    levels = run(deployment, load)
    assert deployment.prompts == [20, 32, 20, 32, 20, 32, 32]
    assert [len(samples) for samples in levels] == [1, 2]


@pytest.mark.parametrize(
    ("cache", "prompts", "resets"),
    [("flush", [32], 1), ("foreign", [32, 32], 1), ("keep", [32], 0), ("primed", [20, 32], 1)],
)
def test_each_level_finds_the_cache_that_it_asks_for(cache: str, prompts: list[int], resets: int) -> None:
    deployment = Metronome()
    level = LoadLevel.model_validate({"concurrency": 1, "requests": 1, "cache": cache})
    run(deployment, spec(level, shared_prefix_tokens=20, warmup_requests=1))
    assert deployment.prompts == [20, 32, *prompts]  # the warm-up's first
    assert deployment.resets == resets


def test_every_group_of_prefixes_is_primed() -> None:
    deployment = Metronome()
    run(deployment, spec(closed(1, 1), shared_prefix_tokens=20, prefix_groups=3, warmup_requests=1))
    assert deployment.prompts == [20, 20, 20, 32] * 2
    virtual = VirtualPrompts(spec(closed(1, 6), prompt_tokens=64, shared_prefix_tokens=40, prefix_groups=3), 16)
    chains = [virtual.sequence("c1", index).blocks[:2] for index in range(6)]
    assert chains[:3] == chains[3:] == [virtual.priming(group).blocks for group in range(3)]
    assert len(set(chains)) == 3


def test_streams_start_together_or_staggered_and_end_with_the_duration() -> None:
    level = LoadLevel.model_validate({"concurrency": 4, "duration_s": 20, "stagger": True})
    (samples,) = run(Metronome(), spec(level, warmup_requests=1))
    alone_s = REQUEST_S + 5 * STEP_S + EVENT_S
    assert [sample.t_send_s for sample in samples[:4]] == pytest.approx([i * alone_s / 4 for i in range(4)])
    assert samples[-1].t_send_s < 20
    assert max(sample.t_last_s for sample in samples) > 20 - alone_s


def test_a_trace_gives_times_and_lengths(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at_s": 1, "prompt_tokens": 9}\n{"at_s": 2, "output_tokens": 3}\n')
    level = LoadLevel.model_validate({"concurrency": 2, "trace_file": str(trace)})
    (samples,) = run(Metronome(), spec(level))
    assert [(sample.prompt_tokens, sample.completion_tokens) for sample in samples] == [(9, 5), (32, 3)]
    assert [sample.t_send_s for sample in samples] == pytest.approx([1, 2])


def test_own_texts_are_not_for_virtual_time() -> None:
    with pytest.raises(BadRequestsFile, match="virtual time knows no texts"):
        VirtualPrompts(spec(closed(1, 1), requests_file="/data/mine.jsonl"), 16)


def test_an_open_loop_keeps_its_schedule_whatever_the_server_does() -> None:
    level = LoadLevel(concurrency=64, requests=40, rate_per_s=30.0)
    (samples,) = run(Metronome(), spec(level))
    due = due_times_s(level, 2)
    assert due is not None
    for sample, due_s in zip(samples, due, strict=True):
        assert sample.t_send_s >= due_s - 1e-9
        assert sample.schedule_lag_ms == pytest.approx((sample.t_send_s - due_s) * 1e3, abs=1e-6)
        assert sample.schedule_lag_ms is not None
        assert sample.schedule_lag_ms < 1.5  # only requests that fall together are sent one after another


def test_an_open_loop_holds_back_what_is_due_beyond_its_cap() -> None:
    level = LoadLevel(concurrency=2, requests=30, rate_per_s=100.0, arrivals=Arrivals.CONSTANT)
    deployment = Metronome()
    (samples,) = run(deployment, spec(level, warmup_requests=1))
    assert in_flight_peak(samples) == 2
    assert deployment.most_inside == 2
    assert samples[-1].schedule_lag_ms is not None
    assert samples[-1].schedule_lag_ms > 300  # 30 requests of 50 ms by two are done in 750 ms, not in 300


def test_a_request_that_takes_too_long_is_given_up_and_the_stream_goes_on() -> None:
    deployment = Metronome(seats=1)
    (samples,) = run(deployment, spec(closed(3, 9), output_tokens=50, request_timeout_s=0.6, warmup_requests=1))
    assert len(samples) == 9
    assert {sample.error for sample in samples} == {None, "timeout"}
    for sample in samples:
        if sample.error is not None:
            assert (sample.ttft_ms, sample.tpot_ms, sample.e2e_ms) == (None, None, None)
            assert sample.t_last_s - sample.t_send_s == pytest.approx(0.6)
    assert deployment.idle


def test_a_request_longer_than_the_servers_context_is_refused() -> None:
    (samples,) = run(Metronome(), spec(closed(2, 4), prompt_tokens=999))
    assert [sample.error for sample in samples] == ["http_400"] * 4


def test_a_run_ends_at_its_limit_and_when_it_is_cancelled() -> None:
    load = spec(closed(1, 100))
    with pytest.raises(LoadTooLong):
        VirtualLoad(Metronome(), load, lambda: False).level(load.workload.levels[0], limit_s=1.0)
    answers = iter([False, False, True])
    with pytest.raises(LoadCancelled):
        VirtualLoad(Metronome(), load, lambda: next(answers)).level(load.workload.levels[0])


def test_what_the_load_process_refuses_is_refused() -> None:
    with pytest.raises(PromptsExhausted):
        VirtualLoad(Metronome(), spec(closed(1, 800), prompt_tokens=1), lambda: False)


@settings(max_examples=25, deadline=None)
@given(
    seats=st.integers(1, 6),
    concurrency=st.integers(1, 8),
    requests=st.integers(1, 25),
    rate=st.one_of(st.none(), st.floats(0.5, 200)),
    timeout_s=st.floats(0.02, 5),
)
def test_every_request_ends_once_and_never_more_are_in_flight_than_asked(
    seats: int, concurrency: int, requests: int, rate: float | None, timeout_s: float
) -> None:
    level = LoadLevel(concurrency=concurrency, requests=requests, rate_per_s=rate)
    deployment = Metronome(seats)
    (samples,) = run(deployment, spec(level, request_timeout_s=timeout_s, warmup_requests=1))
    assert [sample.index for sample in samples] == list(range(requests))
    assert in_flight_peak(samples) <= concurrency
    assert deployment.idle
    for sample in samples:
        assert sample.t_last_s - sample.t_send_s <= timeout_s + 1e-9
        assert sample.error in (None, "timeout")
        assert (sample.error is None) == (sample.ttft_ms is not None)


@pytest.mark.parametrize("shared", [0, 7])
@pytest.mark.parametrize("length", [8, 33])
def test_prompts_are_those_of_the_load_process(length: int, shared: int) -> None:
    load = spec(closed(1, 60), prompt_tokens=length, shared_prefix_tokens=shared)
    source, virtual = PromptSource(load), VirtualPrompts(load, 16)
    for index in range(60):  # with one token of its own, draws repeat
        tokens = source.prompt("c1", index)
        sequence = virtual.sequence("c1", index)
        assert (sequence.prompt_tokens, sequence.max_tokens) == (len(tokens), 5)
        assert sequence.seed == request_seed(tokens)


def test_prompts_share_the_blocks_of_their_prefix_and_no_other() -> None:
    virtual = VirtualPrompts(spec(closed(1, 4), prompt_tokens=64, shared_prefix_tokens=40), 16)
    assert virtual.groups == 1
    priming = virtual.priming(0)
    assert (priming.prompt_tokens, priming.max_tokens, len(priming.blocks)) == (40, 1, 2)
    chains = [virtual.sequence("c1", index).blocks for index in range(4)]
    assert all(chain[:2] == priming.blocks for chain in chains)
    assert len({block for chain in chains for block in chain[2:]}) == 4 * 2
    assert VirtualPrompts(spec(closed(1, 1)), 16).groups == 0


def test_a_level_with_a_precision_ends_as_that_of_the_real_load_does() -> None:
    load = spec(closed(4, 100).model_copy(update={"precision": 0.01}))
    driver = VirtualLoad(Metronome(), load, lambda: False)
    samples = driver.level(load.workload.levels[0])
    decision = driver.stopped["c4"]
    assert (decision.verdict, decision.batches) == ("precise", 4)
    assert decision.requests == 4 * 5
    assert decision.mean_ms == pytest.approx(STEP_S * 1e3)
    assert decision.requests <= len(samples) <= decision.requests + 3
