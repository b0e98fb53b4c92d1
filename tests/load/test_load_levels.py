"""Levels as a whole: their caches, their usage, the processes that send them, and the host's part in it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.domain.measurement import TokenCount
from autotune.domain.stop_rule import Verdict
from autotune.domain.workload import CachePolicy, LoadLevel
from tests.load.certificates import self_signed
from tests.load.mock_endpoint import MockEndpoint, Script
from tests.load.running import ENV, run, spec_of
from workers.load.host_watch import processor_ticks
from workers.load.process import LoadFailed, LoadProcess
from workers.load.recompute import recompute
from workers.load.spec import LoadSpec
from workers.measure.measured import concluded

RESET = "/reset_prefix_cache"


def prefixed(url: str, cache: CachePolicy) -> LoadSpec:
    spec = spec_of(url, LoadLevel(concurrency=2, requests=4, cache=cache), warm_up=3)
    return spec.model_copy(update={"workload": spec.workload.model_copy(update={"shared_prefix_tokens": 24})})


@pytest.mark.parametrize(
    ("cache", "emptied", "primings", "foreign"),
    [
        (CachePolicy.PRIMED, 1, 2, 0),
        (CachePolicy.FLUSH, 1, 1, 0),
        (CachePolicy.FOREIGN, 1, 1, 3),
        (CachePolicy.KEEP, 0, 1, 0),
    ],
)
def test_each_level_finds_the_cache_that_it_asks_for(
    tmp_path: Path, cache: CachePolicy, emptied: int, primings: int, foreign: int
) -> None:
    with MockEndpoint(controls={RESET: [200]}) as endpoint:
        result = run(prefixed(endpoint.url, cache), tmp_path)
    assert len(endpoint.controlled) == emptied
    assert sum(len(one.prompt) == 24 for one in endpoint.served) == primings
    measured = endpoint.served[-4:]
    before = endpoint.served[4 : len(endpoint.served) - 4]
    assert len([one for one in before if len(one.prompt) == 32]) == foreign
    if foreign:
        assert not {one.prompt[:24] for one in before} & {one.prompt[:24] for one in measured}
    assert len(result.levels["c2"]) == 4
    assert len(result.warm_up) == 3


# --- running usage -------------------------------------------------------------------------------


def asks_for_it(endpoint: MockEndpoint) -> list[bool]:
    return ["continuous_usage_stats" in one.body["stream_options"] for one in endpoint.served]


def test_running_usage_is_asked_for_where_the_server_tells_it(tmp_path: Path) -> None:
    with MockEndpoint(Script(running_usage=True)) as endpoint:
        result = run(spec_of(endpoint.url, (1, 3)), tmp_path)
    assert result.continuous_usage
    assert asks_for_it(endpoint) == [True] * 5
    assert {sample.counted_by for sample in result.levels["c1"]} == {TokenCount.USAGE}


def test_a_server_that_ignores_it_is_asked_once(tmp_path: Path) -> None:
    with MockEndpoint() as endpoint:
        result = run(spec_of(endpoint.url, (1, 3)), tmp_path)
    assert not result.continuous_usage
    assert asks_for_it(endpoint) == [True, False, False, False, False]


def test_a_server_that_refuses_it_fails_nothing(tmp_path: Path) -> None:
    def script(number: int) -> Script:
        return Script(status=400) if number == 0 else Script()

    with MockEndpoint(script) as endpoint:
        process = LoadProcess.start(spec_of(endpoint.url, (1, 3), warm_up=1), tmp_path, ENV)
        try:
            until(lambda: process.ended)
            process.poll()
            tally = process.tally("warm_up")
            result = process.result()
        finally:
            process.stop()
    assert asks_for_it(endpoint) == [True] + [False] * 4
    assert [sample.error for sample in (*result.warm_up, *result.levels["c1"])] == [None] * 4
    assert tally is not None
    assert tally[1].failed == 0


# --- several processes ---------------------------------------------------------------------------


def shared(url: str, processes: int, *levels: LoadLevel) -> LoadSpec:
    return spec_of(url, *levels, output=5).model_copy(update={"processes": processes})


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_processes_send_the_same_requests_as_one(tmp_path: Path) -> None:
    levels = (
        LoadLevel(concurrency=6, requests=20),
        LoadLevel.model_validate({"concurrency": 8, "requests": 12, "rate_per_s": 100}),
    )
    prompts: list[set[tuple[int, ...]]] = []
    for processes in (1, 3):
        folder = tmp_path / str(processes)
        folder.mkdir()
        with MockEndpoint() as endpoint:
            result = run(shared(endpoint.url, processes, *levels), folder)
        prompts.append({one.prompt for one in endpoint.served})
        assert len(prompts[-1]) == len(endpoint.served) == 2 + 32
        for level in levels:
            samples = result.levels[level.name]
            assert [sample.index for sample in samples] == list(range(level.requests))
            assert {sample.error for sample in samples} == {None}
        assert result.host.processes == processes
        assert result.host.cpu_s > 0
        assert result.host.window_s > 0
        kept = {path.name for path in folder.glob("streams*.gz")}
        shards = {f"streams.{level.name}.{number}.gz" for level in levels for number in range(3)}
        assert kept == ({"streams.gz"} if processes == 1 else {"streams.gz", *shards})
        assert endpoint.open_most <= 8
    assert prompts[0] == prompts[1]


def test_a_process_that_dies_fails_the_load(tmp_path: Path) -> None:
    with MockEndpoint(lambda number: Script(stall_after=1) if number >= 2 else Script()) as endpoint:
        process = LoadProcess.start(shared(endpoint.url, 2, LoadLevel(concurrency=4, requests=4)), tmp_path, ENV)
        try:
            until(lambda: endpoint.open_now == 4)
            first, second = children(process.pid)
            os.kill(first, signal.SIGKILL)
            until(lambda: process.ended)
            with pytest.raises(LoadFailed, match="ShardFailed: c4: a process of the level was killed by signal 9"):
                process.result()
            assert not is_shard(second)
        finally:
            process.stop()


def test_nothing_stays_behind_a_load_that_is_killed(tmp_path: Path) -> None:
    with MockEndpoint(lambda number: Script(stall_after=1) if number >= 2 else Script()) as endpoint:
        process = LoadProcess.start(shared(endpoint.url, 2, LoadLevel(concurrency=4, requests=4)), tmp_path, ENV)
        try:
            until(lambda: endpoint.open_now == 4)
            shards = children(process.pid)
            assert len(shards) == 2
            os.kill(process.pid, signal.SIGKILL)
            until(lambda: not any(map(is_shard, shards)))
        finally:
            process.stop()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_shard(pid: int) -> bool:
    try:
        return b"workers.load.shard" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


# --- connections and the host --------------------------------------------------------------------


def test_connections_are_used_before_a_level_where_that_is_asked_for(tmp_path: Path) -> None:
    with MockEndpoint() as endpoint:
        spec = spec_of(endpoint.url, (3, 6)).model_copy(update={"use_connections": True})
        samples = run(spec, tmp_path).levels["c3"]
    assert {sample.error for sample in samples} == {None}
    assert len(endpoint.served) == 8


def test_times_of_our_own_are_marked(tmp_path: Path) -> None:
    with MockEndpoint() as endpoint:
        spec = spec_of(endpoint.url, (1, 2)).model_copy(update={"kernel_stamps": False})
        samples = run(spec, tmp_path).levels["c1"]
    assert [(sample.error, sample.stamp) for sample in samples] == [(None, "user")] * 2


def test_what_the_host_did(tmp_path: Path) -> None:
    with MockEndpoint() as endpoint:
        host = run(spec_of(endpoint.url, (2, 6)), tmp_path).host
    assert host.cpu_ms_per_token == pytest.approx(1000 * host.cpu_s / 120)
    assert host.clock_step_us is not None
    assert host.busiest_share is not None
    assert host.busiest_share > 0
    assert host.load.cpu_ms_per_token == host.cpu_ms_per_token


def test_stolen_time_is_the_eighth_column(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert processor_ticks(stat) == (36, 8)
    stat.write_text("cpu  1 2 3\n")
    assert processor_ticks(stat) is None
    assert processor_ticks(tmp_path / "missing") is None


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_a_run_over_tls(tmp_path: Path) -> None:
    certificate, context = self_signed(tmp_path)
    with MockEndpoint(tls=context) as endpoint:
        spec = spec_of(endpoint.url, (2, 4))
        with pytest.raises(LoadFailed, match=r"NotTrusted: .*name its authority in ca_file"):
            run(spec, tmp_path)
        result = run(spec.model_copy(update={"ca_file": str(certificate)}), tmp_path)
    assert [sample.error for sample in result.levels["c2"]] == [None] * 4


def test_a_level_with_a_precision_ends_when_its_pace_is_known(tmp_path: Path) -> None:
    level = LoadLevel(concurrency=2, requests=60, precision=0.5, stagger=True)
    with MockEndpoint() as mock:
        spec = spec_of(mock.url, level, output=12)
        result = run(spec, tmp_path)
    decision = result.stopped["c2"]
    samples = result.levels["c2"]
    assert decision.verdict is Verdict.PRECISE
    assert decision.requests < 60
    assert decision.half_width is not None
    assert decision.half_width <= 0.5
    # Those in flight are sent to their end.
    assert decision.requests <= len(samples) <= decision.requests + 2
    assert [one.index for one in samples] == list(range(len(samples)))
    assert all(one.error is None for one in samples)
    concluded_from, _ = concluded(spec.workload, [result], ())
    for measurement in (concluded_from, recompute(tmp_path).measurement):
        found = measurement.levels["c2"]
        assert found.stopped == decision
        assert found.tpot_ms is not None
        assert found.tpot_ms.n <= decision.requests - 2, "the first round does not count"


def test_a_level_that_never_becomes_precise_sends_all_its_requests(tmp_path: Path) -> None:
    level = LoadLevel(concurrency=2, requests=8, precision=0.001)
    with MockEndpoint() as mock:
        result = run(spec_of(mock.url, level, output=12), tmp_path)
    assert result.stopped["c2"].verdict is Verdict.CAP
    assert len(result.levels["c2"]) == 8
