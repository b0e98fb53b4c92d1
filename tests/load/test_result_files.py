"""Result files of other load generators: their names, their units, their percentiles."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.domain.measurement import RequestSample, summarise
from autotune.domain.workload import LoadLevel
from workers.load.result_files import (
    MeasuredLevel,
    ResultForm,
    evalscope_files,
    guidellm_report,
    nearest_rank,
    vllm_result,
    write_results,
)

# What `vllm bench serve --save-result --save-detailed` writes of a load of text, E2E latencies asked for too.
VLLM = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate"),
    *("burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput", "input_lens"),
    *("output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts", "errors"),
    *("max_output_tokens_per_s", "max_concurrent_requests"),
    *(f"{how}_{what}_ms" for how in ("mean", "median", "std", "p99") for what in ("ttft", "tpot", "itl", "e2el")),
}
LISTS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts")
SUMMARY = {
    *("Test Duration (s)", "Concurrency", "Request Rate (req/s)", "Total Requests", "Success Requests"),
    *("Failed Requests", "Stream Requests", "Non-Stream Requests", "Req Throughput (req/s)", "Avg Latency (s)"),
    *("Avg Input Tokens", "Output Throughput (tok/s)", "Total Throughput (tok/s)", "Avg TTFT (ms)", "Avg TPOT (ms)"),
    *("Avg ITL (ms)", "Avg Output Tokens", "Avg Decoded Tok/Iter", "Spec. Accept Rate"),
}
PERCENTILES = {
    *("Percentiles", "Latency (s)", "TTFT (ms)", "ITL (ms)", "TPOT (ms)", "Input tokens", "Output tokens"),
    *("Output (tok/s)", "Total (tok/s)", "Decode (tok/s)"),
}


def good(index: int) -> RequestSample:
    """Eleven tokens, 10 + index ms each."""
    gap = 10.0 + index
    return RequestSample(
        index=index,
        t_send_s=index,
        t_last_s=index + 0.1 + gap / 100,
        ttft_ms=100.0,
        ttfo_ms=100.0,
        tpot_ms=gap,
        e2e_ms=100 + 10 * gap,
        prompt_tokens=7,
        completion_tokens=11,
        events=11,
        gaps_ms=(gap,) * 10,
        gap_tokens=(1.0,) * 10,
    )


FAILED = RequestSample(index=4, t_send_s=4.0, t_last_s=4.5, error="http_503")


def measured(*samples: RequestSample, rate: float | None = None, concurrency: int = 2) -> MeasuredLevel:
    level = LoadLevel(concurrency=concurrency, requests=5, rate_per_s=rate)
    return MeasuredLevel(
        url="http://h:1",
        model="m",
        api="completions",
        started_at=datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC),
        level=level,
        figures=summarise(level.name, concurrency, samples, rate),
        samples=samples,
    )


def five() -> MeasuredLevel:
    return measured(*(good(index) for index in range(4)), FAILED)


def test_vllm() -> None:
    result = vllm_result(five())
    assert set(result) == VLLM
    assert result["date"] == "20260504-030201"
    assert (result["num_prompts"], result["completed"], result["failed"]) == (5, 4, 1)
    assert (result["request_rate"], result["burstiness"], result["max_concurrency"]) == ("inf", 1.0, 2)
    assert {len(result[name]) for name in LISTS} == {5}
    assert result["ttfts"] == [0.1, 0.1, 0.1, 0.1, 0.0]  # s, and 0 for a request that failed
    assert result["itls"][1] == [0.011] * 10
    assert result["errors"] == ["", "", "", "", "http_503"]
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (28, 44)
    assert result["mean_tpot_ms"] == pytest.approx(11.5)
    assert result["std_tpot_ms"] == pytest.approx(1.118034)  # of a whole population
    assert result["p99_tpot_ms"] == pytest.approx(12.97)  # interpolated
    assert result["mean_e2el_ms"] == pytest.approx(215)


def test_a_rate_and_no_good_request() -> None:
    result = vllm_result(measured(FAILED.model_copy(update={"schedule_lag_ms": 2.0}), rate=4.0))
    assert (result["request_rate"], result["completed"], result["queue_times"]) == (4.0, 0, [0.002])
    assert result["mean_tpot_ms"] is None  # undefined, and no zero
    files = evalscope_files(measured(FAILED, rate=4.0))
    assert files["benchmark_summary.json"]["Request Rate (req/s)"] == 4.0
    assert "Avg TPOT (ms)" not in files["benchmark_summary.json"]
    assert set(files["benchmark_percentile.json"][0]) == {"Percentiles"}
    (benchmark,) = guidellm_report([measured(FAILED)])["benchmarks"]
    assert benchmark["metrics"]["time_to_first_token_ms"]["successful"] is None


def test_evalscope() -> None:
    files = evalscope_files(five())
    assert set(files) == {"benchmark_args.json", "benchmark_summary.json", "benchmark_percentile.json"}
    summary = files["benchmark_summary.json"]
    assert set(summary) == SUMMARY
    assert (summary["Total Requests"], summary["Success Requests"], summary["Failed Requests"]) == (5, 4, 1)
    assert (summary["Avg TTFT (ms)"], summary["Avg TPOT (ms)"], summary["Avg Latency (s)"]) == (100.0, 11.5, 0.215)
    rows = files["benchmark_percentile.json"]
    assert [row["Percentiles"] for row in rows] == [
        "min",
        *(f"{p}%" for p in (1, 5, 10, 25, 50, 75, 90, 95, 99)),
        "max",
    ]
    assert all(set(row) == PERCENTILES for row in rows)
    assert [row["TPOT (ms)"] for row in rows if row["Percentiles"] in ("50%", "75%", "99%")] == [11.0, 12.0, 13.0]
    assert files["benchmark_args.json"]["url"] == "http://h:1/v1/completions"


def test_guidellm() -> None:
    (benchmark,) = guidellm_report([five()])["benchmarks"]
    metrics = benchmark["metrics"]
    assert metrics["request_totals"] == {"successful": 4, "incomplete": 0, "errored": 1, "total": 5}
    assert metrics["inter_token_latency_ms"]["successful"]["mean"] == pytest.approx(11.5)
    assert metrics["time_per_output_token_ms"]["successful"]["mean"] == pytest.approx(215 / 11)
    assert metrics["request_latency"]["successful"]["mean"] == pytest.approx(0.215)
    percentiles = metrics["inter_token_latency_ms"]["successful"]["percentiles"]
    names = ["p001", "p01", "p05", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p999"]
    assert list(percentiles) == names
    assert [len(benchmark["requests"][status]) for status in ("successful", "incomplete", "errored")] == [4, 0, 1]


def test_files_by_level(tmp_path: Path) -> None:
    one, other = five(), measured(good(0), concurrency=3)
    assert write_results(ResultForm.VLLM, [one], tmp_path / "a" / "r.json") == (tmp_path / "a" / "r.json",)
    several = write_results(ResultForm.VLLM, [one, other], tmp_path / "r.json")
    assert [path.name for path in several] == ["r.c2.json", "r.c3.json"]
    assert json.loads(several[1].read_text())["max_concurrency"] == 3
    folders = write_results(ResultForm.EVALSCOPE, [one, five(), other], tmp_path / "e")
    assert len(set(folders)) == 9
    assert folders[0] == tmp_path / "e" / "parallel_2_number_5" / "benchmark_args.json"
    (report,) = write_results(ResultForm.GUIDELLM, [one, other], tmp_path / "g.json")
    assert len(json.loads(report.read_text())["benchmarks"]) == 2


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_a_nearest_rank_is_a_value_that_enough_others_do_not_exceed(values: list[float], percent: float) -> None:
    ordered = sorted(values)
    found = nearest_rank(ordered, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-9
