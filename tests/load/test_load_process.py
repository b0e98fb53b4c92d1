"""The whole load process against an endpoint that knows the truth."""

from __future__ import annotations

import itertools
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.domain.measurement import RequestSample, Trust, summarise
from autotune.domain.trust import assess
from tests.load.mock_endpoint import MockEndpoint, Script, Served
from tests.load.running import ENV, ended, run, spec_of
from workers.load.process import LoadFailed, LoadProcess
from workers.load.prompts import WARM_UP, PromptSource
from workers.load.spec import LoadProgress, LoadResult, LoadSpec

CLOCK_ERROR_MS = 0.1


def errors(samples: tuple[RequestSample, ...]) -> list[str | None]:
    return [sample.error for sample in samples]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadSpec, LoadResult, list[Served], int]:
    with MockEndpoint(Script(first_s=0.05, gap_s=0.01)) as endpoint:
        spec = spec_of(endpoint.url, (1, 3), (8, 20), output=40)
        result = run(spec, tmp_path_factory.mktemp("attempt"))
        return spec, result, endpoint.served, endpoint.open_most


@pytest.mark.parametrize("level", ["c1", "c8"])
def test_figures_against_the_truth(measured: tuple[LoadSpec, LoadResult, list[Served], int], level: str) -> None:
    spec, result, served, _ = measured
    truth = {one.prompt: one for one in served}
    source = PromptSource(spec)
    samples = result.levels[level]
    quotients: list[float] = []
    for sample in samples:
        true = truth[tuple(source.prompt(level, sample.index))]
        assert sample.error is None
        assert (sample.completion_tokens, sample.prompt_tokens, sample.finish_reason) == (40, 32, "length")
        assert sample.ttft_ms is not None
        assert sample.ttft_ms > (true.sent_ns[0] - true.received_ns) / 1e6 - CLOCK_ERROR_MS
        assert sample.e2e_ms is not None
        assert sample.e2e_ms > (true.sent_ns[-1] - true.received_ns) / 1e6 - CLOCK_ERROR_MS
        assert sample.tpot_ms is not None
        quotients.append(sample.tpot_ms / true.tpot_ms())
    assert statistics.median(quotients) == pytest.approx(1, abs=0.05)


def test_the_loop_is_closed(measured: tuple[LoadSpec, LoadResult, list[Served], int]) -> None:
    _, result, served, open_most = measured
    assert list(result.levels) == ["c1", "c8"]
    assert [len(samples) for samples in result.levels.values()] == [3, 20]
    assert [sample.index for sample in result.levels["c8"]] == list(range(20))
    assert open_most == 8
    assert len(served) == 2 + 3 + 20
    assert len({one.prompt for one in served}) == 25
    in_flight = [
        sum(1 for s in result.levels["c8"] if s.t_send_s <= moment.t_send_s <= s.t_last_s)
        for moment in result.levels["c8"]
    ]
    assert max(in_flight) <= 8
    assert all(b.t_send_s >= a.t_last_s for a, b in itertools.pairwise(result.levels["c1"]))
    assert {one.path for one in served} == {"/v1/completions"}


def test_the_host_and_trust(measured: tuple[LoadSpec, LoadResult, list[Served], int]) -> None:
    spec, result, _, _ = measured
    assert 0 < result.host.cpu_s <= result.host.window_s * 1.5
    assert result.host.uvloop
    levels = [summarise(level.name, level.concurrency, result.levels[level.name]) for level in spec.workload.levels]
    measurement = assess(spec.workload, result.levels, levels)
    assert measurement.trust is not Trust.INVALID, measurement.trust_reasons


def test_phases_and_warm_up(tmp_path: Path) -> None:
    with MockEndpoint() as endpoint:
        spec = spec_of(endpoint.url, (6, 6), (2, 2), warm_up=9)
        process = LoadProcess.start(spec, tmp_path, ENV)
        with pytest.raises(LoadFailed, match="not ended"):
            process.result()
        seen = ended(process)
        result = process.result()
    phases = [LoadProgress(phase="starting"), LoadProgress(phase="warm_up")]
    phases += [LoadProgress(phase="load", level="c6"), LoadProgress(phase="load", level="c2")]
    phases += [LoadProgress(phase="done")]
    assert [phase for phase in phases if phase in seen] == seen  # a short phase may pass between two looks
    assert seen[-1] == LoadProgress(phase="done")
    source = PromptSource(spec)
    assert {one.prompt for one in endpoint.served[:9]} == {tuple(source.prompt(WARM_UP, n)) for n in range(9)}
    assert len(result.warm_up) == 9
    moments = [(s.t_send_s, s.t_last_s) for s in result.warm_up]
    assert max(sum(1 for a, b in moments if a <= at <= b) for at, _ in moments) <= 4
    process.stop()  # after the end: nothing
    assert sorted(path.name for path in tmp_path.iterdir()) == ["load.json", "load.log", "samples.json", "streams.gz"]


CASES: dict[str, tuple[Script, str | None]] = {
    "role event": (Script(role_event=True, channel="content"), None),
    "four tokens an event": (Script(tokens_per_event=4), None),
    "reasoning": (Script(channel="reasoning_content"), None),
    "crlf and comments": (Script(newline=b"\r\n", comments=True), None),
    "bytes": (Script(piece_bytes=1, gap_s=0.02, word="語", tokens=4), None),
    "eof": (Script(framing="eof"), None),
    "error": (Script(error_after=5), "stream_error"),
    "503": (Script(status=503), "http_503"),
    "rst": (Script(reset_after=5), "reset"),
    "early end": (Script(done=False), "truncated_stream"),
    "no reason": (Script(finish_reason=None), "truncated_stream"),
    "cut": (Script(close_after=3), "truncated_stream"),
    "stall": (Script(stall_after=3), "timeout"),
    "no usage": (Script(usage=False), None),
    "buffered": (Script(buffered=True), None),
    "one document": (Script(framing="length"), None),
}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RequestSample, Served]]:
    """One run in which each request meets another case; the warm-up meets the first one."""
    scripts = [script for script, _ in CASES.values()]
    with MockEndpoint(lambda number: scripts[max(number - 1, 0)]) as endpoint:
        spec = spec_of(endpoint.url, (1, len(scripts)), warm_up=1, timeout_s=2)
        result = run(spec, tmp_path_factory.mktemp("attempt"))
    return dict(zip(CASES, zip(result.levels["c1"], endpoint.served[1:], strict=True), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_each_case_is_told_apart(scripted: dict[str, tuple[RequestSample, Served]], case: str) -> None:
    sample, _ = scripted[case]
    assert sample.error == CASES[case][1]
    assert (sample.ttft_ms is None) == (sample.error is not None)


def test_a_role_event_is_no_first_token(scripted: dict[str, tuple[RequestSample, Served]]) -> None:
    sample, served = scripted["role event"]
    assert sample.events == 20
    assert sample.ttft_ms is not None
    assert sample.ttft_ms > (served.sent_ns[0] - served.received_ns) / 1e6 - CLOCK_ERROR_MS


def test_tokens_are_counted_by_the_server(scripted: dict[str, tuple[RequestSample, Served]]) -> None:
    sample, _ = scripted["four tokens an event"]
    assert (sample.events, sample.completion_tokens) == (5, 20)
    assert scripted["no usage"][0].completion_tokens is None
    assert scripted["no usage"][0].tpot_ms is None


def test_what_comes_at_once_has_no_tpot(scripted: dict[str, tuple[RequestSample, Served]]) -> None:
    assert scripted["buffered"][0].events == 20
    assert scripted["buffered"][0].tpot_ms is None
    assert scripted["one document"][0].events == 1
    assert scripted["one document"][0].tpot_ms is None


def test_a_buffered_stream_is_not_trusted(tmp_path: Path) -> None:
    with MockEndpoint(Script(buffered=True)) as endpoint:
        spec = spec_of(endpoint.url, (2, 4))
        result = run(spec, tmp_path)
    measurement = assess(spec.workload, result.levels, [summarise("c2", 2, result.levels["c2"])])
    assert measurement.trust is Trust.INVALID
    assert any("at once" in reason for reason in measurement.trust_reasons)


def test_a_dead_server_is_data(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        result = run(spec_of(f"http://127.0.0.1:{unused.getsockname()[1]}", (2, 5)), tmp_path)
    assert errors(result.levels["c2"]) == ["connect"] * 5
    assert errors(result.warm_up) == ["connect"] * 2


def test_chat(tmp_path: Path) -> None:
    with MockEndpoint(Script(channel="content", role_event=True)) as endpoint:
        spec = spec_of(endpoint.url + "/", (1, 2)).model_copy(update={"api": "chat"})
        result = run(spec, tmp_path)
    assert errors(result.levels["c1"]) == [None, None]
    assert {one.path for one in endpoint.served} == {"/v1/chat/completions"}


NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (spec_of(NOWHERE, (1, 5000), prompt=1), "raise prompt_tokens"),
        (spec_of(NOWHERE, (1, 5000), prompt=1_000_000), "5000 requests of c1 take more than 2 GiB"),
    ],
    ids=["prompts", "memory"],
)
def test_own_faults_say_why(tmp_path: Path, spec: LoadSpec, reason: str) -> None:
    process = LoadProcess.start(spec, tmp_path, ENV)
    ended(process)
    with pytest.raises(LoadFailed, match=rf"code 3: .*{reason}"):
        process.result()


@pytest.mark.parametrize("arguments", [[], ["missing.json", "result.json"], ["broken.json", "result.json"]])
def test_a_spec_that_cannot_be_read(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "broken.json").write_text(json.dumps({"model": "m"}))
    done = subprocess.run(
        [sys.executable, "-m", "workers.load", *arguments], cwd=tmp_path, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert done.stderr
    assert not (tmp_path / "result.json").exists()


def test_stop_ends_it(tmp_path: Path) -> None:
    with MockEndpoint(Script(stall_after=1)) as endpoint:
        process = LoadProcess.start(spec_of(endpoint.url, (1, 1)), tmp_path, ENV)
        end = time.monotonic() + 30
        while process.poll().phase != "warm_up":
            assert time.monotonic() < end
            time.sleep(0.01)
        process.stop()
    assert process.ended
    with pytest.raises(LoadFailed, match="killed by signal 15"):
        process.result()
    assert not (tmp_path / "samples.json").exists()


def test_stop_ends_what_does_not_listen(tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(99)"
    )
    deaf = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, bufsize=0, process_group=0)
    assert deaf.stdout is not None
    assert deaf.stdout.read(4) == b"deaf"
    process = LoadProcess(deaf, tmp_path)
    process.stop(grace_s=0.2)
    with pytest.raises(LoadFailed, match="killed by signal 9"):
        process.result()


def test_an_interpreter_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(LoadFailed, match="does not start"):
        LoadProcess.start(spec_of("http://127.0.0.1:1", (1, 1)), tmp_path, ENV)
