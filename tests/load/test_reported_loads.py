"""Public reports of loads that were not what they said: rates, gaps, prompts, limits, failures, hidden retries.

Each names its source. None asks for anything that depends on how fast the machine is: where a time is asked for, it
is one that the endpoint makes the load wait.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from autotune.domain.measurement import summarise
from autotune.domain.workload import Arrivals, LoadLevel
from tests.load.mock_endpoint import MockEndpoint, Script
from tests.load.running import run, spec_of

pytestmark = pytest.mark.timeout(120)


def test_waiting_for_a_free_stream_is_told(tmp_path: Path) -> None:
    """vllm-project/vllm#54101: what waits at the client's limit is missing from its latency."""
    level = LoadLevel(concurrency=1, requests=5, rate_per_s=50, arrivals=Arrivals.CONSTANT)
    with MockEndpoint(Script(first_s=0.1)) as endpoint:
        samples = run(spec_of(endpoint.url, level, output=2), tmp_path).levels[level.name]
    for sample in samples:
        assert sample.error is None
        assert sample.schedule_lag_ms is not None
        assert sample.ttft_ms is not None
        assert sample.ttft_ms >= 100  # of the server alone
    # The last one is due after 80 ms at the latest, and sent behind four answers of 100 ms.
    assert samples[-1].schedule_lag_ms is not None
    assert samples[-1].schedule_lag_ms >= 300


def test_the_schedule_does_not_drift(tmp_path: Path) -> None:
    """modelscope/evalscope#1366: sleeping from request to request lowers the rate of the whole run."""
    level = LoadLevel(concurrency=8, requests=8, rate_per_s=100, arrivals=Arrivals.CONSTANT)
    with MockEndpoint() as endpoint:
        samples = run(spec_of(endpoint.url, level, output=2), tmp_path).levels[level.name]
    due = [sample.t_send_s - (sample.schedule_lag_ms or 0) / 1e3 for sample in samples]
    assert [b - a for a, b in pairwise(due)] == pytest.approx([0.01] * 7, abs=1e-5)


def test_time_without_a_request_is_visible(tmp_path: Path) -> None:
    """modelscope/evalscope#1101: a slot that stands empty between two requests is less load than was asked for."""
    steps = [
        (0.01, b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'),
        (0.02, b'data: {"choices": [{"index": 0, "text": "b"}]}\n\n'),
        (0.12, b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "length"}],'),
        (0.12, b'"usage": {"prompt_tokens": 32, "completion_tokens": 2}}\n\ndata: [DONE]\n\n'),
    ]
    with MockEndpoint(Script(steps=steps)) as endpoint:
        samples = run(spec_of(endpoint.url, (1, 4), output=2), tmp_path).levels["c1"]
    level = summarise("c1", 1, samples)
    assert level.in_flight_mean is not None
    gaps = sum(b.t_send_s - a.t_last_s for a, b in pairwise(samples))
    assert gaps >= 3 * 0.09
    assert (1 - level.in_flight_mean) * level.duration_s == pytest.approx(gaps, rel=1e-3)


def test_prompts_are_new_in_every_run_and_level_and_never_shared(tmp_path: Path) -> None:
    """vllm-project/vllm#52884, #54227 and kubernetes-sigs/inference-perf#340: a fixed seed meets a warm cache."""
    with MockEndpoint() as endpoint:
        spec = spec_of(endpoint.url, (2, 6), (3, 6), output=2)
        for trial in (1, 2):
            folder = tmp_path / str(trial)
            folder.mkdir()
            run(spec.model_copy(update={"seed": trial}), folder)
        prompts = [served.prompt for served in endpoint.served]
    assert len(prompts) == 2 * (2 + 6 + 6)
    assert len(set(prompts)) == len(prompts)
    assert len({prompt[:8] for prompt in prompts}) == len(prompts)


def test_all_that_is_asked_for_is_in_flight(tmp_path: Path) -> None:
    """vllm-project/guidellm#487, encode/httpx#3215: a client with a pool of 100 never has 128 in flight.

    kubernetes-sigs/inference-perf#648: one that prepares long prompts while it sends reaches a few of them. The
    endpoint answers nothing until all 128 are there.
    """

    def script(number: int) -> Script:
        return Script(gather=128 if number >= 2 else 0)

    with MockEndpoint(script) as endpoint:
        samples = run(spec_of(endpoint.url, (128, 128), output=2, prompt=3000, timeout_s=90), tmp_path).levels["c128"]
        assert endpoint.open_most == 128
    assert {sample.error for sample in samples} == {None}
    assert summarise("c128", 128, samples).in_flight_peak == 128


def test_failures_stay_out_of_latencies_and_in_the_count(tmp_path: Path) -> None:
    """SemiAnalysisAI/InferenceX#357, vllm-project/guidellm#444: quick refusals make an overloaded server look quick.

    gpustack/gpustack#1677: nothing is sent again, so that none of them is hidden.
    """

    def script(number: int) -> Script:
        return Script(status=503) if number % 3 == 2 else Script(first_s=0.05)

    with MockEndpoint(script) as endpoint:
        samples = run(spec_of(endpoint.url, (1, 9), output=2), tmp_path).levels["c1"]
        assert len(endpoint.served) == 2 + 9
    level = summarise("c1", 1, samples)
    assert (level.sent, level.failed, level.errors) == (9, 3, {"http_503": 3})
    assert level.ttft_ms is not None
    assert level.ttft_ms.n == 6
    assert level.ttft_ms.p50 >= 50
    assert level.output_tok_s == pytest.approx(12 / level.duration_s)
