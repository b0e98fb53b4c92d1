"""What is read from a server's /metrics, from the text to the real processes."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.domain.measurement import Measurement
from autotune.domain.server_truth import ServerTruth
from autotune.domain.workload import LoadLevel
from tests.llama.running import ALIAS, started
from tests.llama.tiny_model import write_tiny_model
from tests.load.mock_endpoint import MockEndpoint
from tests.load.running import run, spec_of
from tests.simulator.server_process import PLAIN, body, serving
from workers.conclusions import measured
from workers.load.server_metrics import difference, engine_names, parse

VLLM = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {0}
vllm:generation_tokens_total{{engine="1",model_name="m"}} {1}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} {2}
vllm:request_success_total{{engine="0",finished_reason="abort",model_name="m"}} 3.0
# TYPE vllm:request_time_per_output_token_seconds histogram
vllm:request_time_per_output_token_seconds_bucket{{le="0.01"}} 0.0
vllm:request_time_per_output_token_seconds_bucket{{le="+Inf"}} {3}
vllm:request_time_per_output_token_seconds_count {3}
vllm:request_time_per_output_token_seconds_sum {4}
"""
OLD_VLLM = """\
# TYPE vllm:gpu_prefix_cache_hits_total counter
vllm:gpu_prefix_cache_hits_total{{model_name="m"}} {0}
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_bucket{{le="+Inf"}} {1}
vllm:time_per_output_token_seconds_count {1}
vllm:time_per_output_token_seconds_sum {2}
"""
SGLANG = """\
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{engine_type="unified"}} {0}
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{{cache_source="device"}} {1}
sglang:cached_tokens_total{{cache_source="host"}} {2}
# TYPE sglang:cuda_graph_passes_total counter
sglang:cuda_graph_passes_total{{mode="decode_full"}} {3}
sglang:cuda_graph_passes_total{{mode="none"}} {4}
"""


def told(template: str, before: tuple[float, ...], after: tuple[float, ...]) -> ServerTruth:
    truth = difference(parse(template.format(*before)), parse(template.format(*after)))
    assert truth is not None
    return truth


def test_engines_and_ranks_are_summed_and_reasons_kept_apart() -> None:
    truth = told(VLLM, (100, 50, 7, 7, 0.070), (160, 90, 11, 11, 0.114))
    assert truth.generation_tokens == 100
    assert truth.finished == 4
    assert truth.finished_by_reason == {"length": 4}
    assert truth.tpot_mean_ms == pytest.approx(11.0)
    assert truth.names["generation_tokens"] == "vllm:generation_tokens"
    assert truth.preemptions is None, "what is not told is no zero"


def test_names_of_older_releases_are_found_and_said() -> None:
    truth = told(OLD_VLLM, (0, 0, 0.0), (640, 10, 0.05))
    assert truth.cached_tokens == 640
    assert truth.tpot_mean_ms == pytest.approx(5.0)
    assert truth.names["cached_tokens"] == "vllm:gpu_prefix_cache_hits"
    assert truth.names["tpot_mean_ms"] == "vllm:time_per_output_token_seconds"


def test_graph_coverage_and_the_sources_of_cached_tokens() -> None:
    truth = told(SGLANG, (0, 0, 0, 10, 0), (64, 128, 64, 100, 10))
    assert truth.engine == "sglang"
    assert truth.cached_tokens == 192
    assert truth.graph_passes == {"decode_full": 90, "none": 10}
    assert truth.graph_share == pytest.approx(0.9)


def test_a_counter_that_went_back_tells_of_a_restart_and_of_nothing_else() -> None:
    truth = told(VLLM, (100, 50, 7, 7, 0.1), (3, 0, 1, 1, 0.01))
    assert truth.restarted
    assert truth.generation_tokens is None


@pytest.mark.parametrize("text", ["", "<html>404</html>", "vllm:generation_tokens_total{", "\x00", 'a{b="c} 1'])
def test_a_page_that_is_something_else_tells_nothing(text: str) -> None:
    assert difference({}, parse(text)) is None


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text: str) -> None:
    difference(parse(text), parse(text))


def test_figures_of_the_names_file_are_those_of_the_value() -> None:
    for names in engine_names().values():
        figures = {*names.counters, *names.means, *names.by_label}
        assert figures <= set(ServerTruth.model_fields)


def test_a_server_without_metrics_is_measured_all_the_same(tmp_path: Path) -> None:
    with MockEndpoint() as mock:
        result = run(spec_of(mock.url, (1, 2)), tmp_path)
    assert result.server == {"c1": {}}
    assert all(sample.error is None for sample in result.levels["c1"])


def test_counters_of_a_simulated_server_agree_and_strangers_are_noticed(tmp_path: Path) -> None:
    with serving(tmp_path / "log", *PLAIN) as (client, _):
        url = str(client.base_url).rstrip("/")
        levels = (LoadLevel(concurrency=1, requests=3), LoadLevel(concurrency=4, requests=8))
        spec = spec_of(url, *levels, output=24).model_copy(update={"model": "sim"})
        result = run(spec, tmp_path)
        for level, tokens in (("c1", 72), ("c4", 192)):
            truth = result.server[level]["server"]
            assert truth.generation_tokens == tokens
            assert truth.finished == tokens // 24
            assert truth.prompt_tokens == truth.finished * 32
            assert truth.tpot_mean_ms is not None
        measurement = measured(spec.workload, result.levels, {}, result.server)
        assert _counted(measurement) == []
        # The same figures beside those of a server that had another client too.
        server = result.server["c1"]["server"]
        client.post("/v1/completions", json=body(16, 8))
        busier = server.model_copy(update={"finished": 4, "generation_tokens": 80})
        measurement = measured(spec.workload, result.levels, {}, {"c1": {"server": busier}})
        assert _counted(measurement) == [
            "c1: the server counts 4 requests, 3 were received: others used it",
            "c1: the server counts 80 generated tokens, 72 were received: others used it",
        ]
        assert measurement.trust == "invalid"


def test_counters_of_a_real_engine_agree(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tiny.gguf")
    with started(tmp_path / "tiny.gguf", tmp_path, "--parallel", "2") as server:
        server.wait_ready()
        assert httpx.get(f"{server.url}/metrics").status_code == httpx.codes.OK
        spec = spec_of(server.url, (2, 4), output=24).model_copy(
            update={"model": ALIAS, "prompt_token_low": 300, "prompt_token_high": 900}
        )
        result = run(spec, tmp_path)
    truth = result.server["c2"]["server"]
    assert truth.engine == "llama.cpp"
    assert truth.generation_tokens == 96
    assert _counted(measured(spec.workload, result.levels, {}, result.server)) == []


def _counted(measurement: Measurement) -> list[str]:
    return [reason for reason in measurement.trust_reasons if "the server counts" in reason]
