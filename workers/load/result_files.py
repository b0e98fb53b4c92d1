"""A measurement as other load generators write theirs, for the tools that read those files.

Names of fields, their units and how percentiles are taken are those of the other tool: `vllm bench serve` with
`--save-detailed`, as its repository has it (but for `rtfx`, which is of audio), `evalscope perf` 1.14, and the parts of
guidellm's report that tell times, as its repository has them. The figures are ours,
by our definitions. What we do not keep stays empty: answers have no text, and a gap that no read shows alone is missing
from the list of gaps. Undefined figures are left out, or `null` where the other tool always has the field.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.domain.level import LevelMeasurement
from autotune.domain.quantiles import quantile
from autotune.domain.request_sample import RequestSample
from autotune.domain.value import Value
from autotune.domain.workload import Arrivals, LoadLevel
from workers.load.spec import Api

_S = 1e-3  # of a ms
_PEER_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_GUIDELLM_PERCENTILES = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)


class ResultForm(StrEnum):
    """Whose result files are written."""

    JSON = "json"
    VLLM = "vllm"
    EVALSCOPE = "evalscope"
    GUIDELLM = "guidellm"


class MeasuredLevel(Value):
    """One level with what it was asked to be and every request of it. `started_at` is that of the whole run."""

    url: str
    model: str
    api: Api
    started_at: datetime
    level: LoadLevel
    figures: LevelMeasurement
    samples: tuple[RequestSample, ...]

    @property
    def good(self) -> list[RequestSample]:
        """Those that ended as planned."""
        return [sample for sample in self.samples if sample.error is None]


def write_results(form: ResultForm, levels: Sequence[MeasuredLevel], path: Path) -> tuple[Path, ...]:
    """Write one run in a form of another tool; gives the files.

    vLLM's client writes one file for one load: with several levels, their names stand before the suffix of `path`.
    evalscope makes a folder of `path`, and in it one for each level. guidellm has all levels in one file.
    Raises OSError.
    """
    if form is ResultForm.EVALSCOPE:
        found: list[Path] = []
        for level in levels:
            folder = path / f"parallel_{level.level.concurrency}_number_{len(level.samples)}"
            if folder in {file.parent for file in found}:  # the same streams and requests at another rate
                folder = path / f"{folder.name}_{level.level.name}"
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in evalscope_files(level).items():
                found.append(_write(folder / name, content))
        return tuple(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    if form is ResultForm.GUIDELLM:
        return (_write(path, guidellm_report(levels)),)
    if form is not ResultForm.VLLM:
        raise ValueError(f"{form} is no other tool's form")
    if len(levels) == 1:
        return (_write(path, vllm_result(levels[0])),)
    return tuple(_write(path.with_suffix(f".{one.level.name}{path.suffix}"), vllm_result(one)) for one in levels)


def _write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content, indent=4, allow_nan=False) + "\n", encoding="utf-8")
    return path


# --- vLLM -------------------------------------------------------------------------------------


def vllm_result(one: MeasuredLevel) -> dict[str, Any]:
    """The object that `vllm bench serve --save-result --save-detailed` writes. Its lists are in s, as requests went."""
    good, figures = one.good, one.figures
    inputs, outputs = _tokens(good)
    times = {
        "ttft": [s.ttft_ms for s in good if s.ttft_ms is not None],
        "tpot": [s.tpot_ms for s in good if s.tpot_ms is not None],
        "itl": [gap for s in good for gap in s.gaps_ms],
        "e2el": [s.e2e_ms for s in good if s.e2e_ms is not None],
    }
    rate = one.level.mean_rate_per_s
    return {
        "date": one.started_at.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": _vllm_backend(one.api),
        "backend": _vllm_backend(one.api),
        "label": None,
        "model_id": one.model,
        "tokenizer_id": None,
        "num_prompts": len(one.samples),
        "request_rate": "inf" if rate is None else rate,
        "burstiness": _burstiness(one.level),
        "max_concurrency": one.level.concurrency,
        "duration": figures.duration_s,
        "completed": len(good),
        "failed": figures.failed,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": figures.requests_per_s,
        "request_goodput": figures.goodput_per_s,
        "output_throughput": figures.output_tok_s,
        "total_token_throughput": (inputs + outputs) / figures.duration_s,
        "input_lens": [s.prompt_tokens or 0 for s in one.samples],
        "output_lens": [s.completion_tokens or 0 if s.error is None else 0 for s in one.samples],
        "ttfts": [(s.ttft_ms or 0.0) * _S for s in one.samples],
        "itls": [[gap * _S for gap in s.gaps_ms] for s in one.samples],
        "latencies": [(s.e2e_ms or 0.0) * _S for s in one.samples],
        "start_times": [s.t_send_s for s in one.samples],
        "queue_times": [(s.schedule_lag_ms or 0.0) * _S for s in one.samples],
        "generated_texts": ["" for _ in one.samples],
        "errors": [s.error or "" for s in one.samples],
        "max_output_tokens_per_s": figures.peak_output_tok_s,
        "max_concurrent_requests": figures.in_flight_peak,
        **{key: value for name, values in times.items() for key, value in _vllm_statistics(name, values)},
    }


def _vllm_backend(api: Api) -> str:
    return "openai-chat" if api == "chat" else "openai"


def _vllm_statistics(name: str, values: Sequence[float]) -> list[tuple[str, float | None]]:
    """With linear interpolation and the deviation of a whole population, as numpy has them."""
    ordered = sorted(values)
    return [
        (f"mean_{name}_ms", statistics.fmean(ordered) if ordered else None),
        (f"median_{name}_ms", quantile(ordered, 0.5) if ordered else None),
        (f"std_{name}_ms", statistics.pstdev(ordered) if ordered else None),
        (f"p99_{name}_ms", quantile(ordered, 0.99) if ordered else None),
    ]


# --- evalscope --------------------------------------------------------------------------------


def evalscope_files(one: MeasuredLevel) -> dict[str, Any]:
    """What `evalscope perf` leaves in the folder of one load, by name."""
    return {
        "benchmark_args.json": _evalscope_arguments(one),
        "benchmark_summary.json": _evalscope_summary(one),
        "benchmark_percentile.json": _evalscope_percentiles(one),
    }


def _evalscope_arguments(one: MeasuredLevel) -> dict[str, Any]:
    path = "/v1/chat/completions" if one.api == "chat" else "/v1/completions"
    return {
        "model": one.model,
        "api": "openai",
        "url": one.url + path,
        "number": len(one.samples),
        "parallel": one.level.concurrency,
        "rate": -1 if one.level.mean_rate_per_s is None else one.level.mean_rate_per_s,
        "open_loop": False,
        "stream": True,
    }


def _evalscope_summary(one: MeasuredLevel) -> dict[str, Any]:
    good, figures = one.good, one.figures
    inputs, outputs = _tokens(good)
    gaps = [gap for s in good for gap in s.gaps_ms]
    accepted = figures.tokens_per_event_mean
    summary = {
        "Test Duration (s)": figures.duration_s,
        "Concurrency": one.level.concurrency,
        "Request Rate (req/s)": -1.0 if one.level.mean_rate_per_s is None else one.level.mean_rate_per_s,
        "Total Requests": len(one.samples),
        "Success Requests": len(good),
        "Failed Requests": figures.failed,
        "Stream Requests": len(one.samples),
        "Non-Stream Requests": 0,
        "Req Throughput (req/s)": figures.requests_per_s,
        "Avg Latency (s)": None if figures.e2e_ms is None else figures.e2e_ms.mean * _S,
        "Avg Input Tokens": figures.prompt_tokens_mean,
        "Output Throughput (tok/s)": figures.output_tok_s,
        "Total Throughput (tok/s)": (inputs + outputs) / figures.duration_s,
        "Avg TTFT (ms)": None if figures.ttft_ms is None else figures.ttft_ms.mean,
        "Avg TPOT (ms)": None if figures.tpot_ms is None else figures.tpot_ms.mean,
        "Avg ITL (ms)": statistics.fmean(gaps) if gaps else None,
        "Avg Output Tokens": figures.output_tokens_mean,
        "Avg Decoded Tok/Iter": accepted,
        "Spec. Accept Rate": None if not accepted or accepted < 1 else 1 - 1 / accepted,
    }
    return {key: _rounded(key, value) for key, value in summary.items() if value is not None}


def _rounded(key: str, value: float) -> float:
    if isinstance(value, int):
        return value
    return round(value, 2 if key.endswith("(ms)") else 4)


def _evalscope_percentiles(one: MeasuredLevel) -> list[dict[str, Any]]:
    """One row for each percentile, by nearest rank."""
    good = [s for s in one.good if s.e2e_ms]
    columns: dict[str, list[float]] = {
        "Latency (s)": [(s.e2e_ms or 0.0) * _S for s in good],
        "TTFT (ms)": [s.ttft_ms for s in good if s.ttft_ms is not None],
        "ITL (ms)": [gap for s in good for gap in s.gaps_ms],
        "TPOT (ms)": [s.tpot_ms for s in good if s.tpot_ms is not None],
        "Input tokens": [s.prompt_tokens for s in good if s.prompt_tokens is not None],
        "Output tokens": [s.completion_tokens for s in good if s.completion_tokens is not None],
        "Output (tok/s)": [_per_s(s, s.completion_tokens) for s in good if s.completion_tokens is not None],
        "Total (tok/s)": [
            _per_s(s, s.completion_tokens + s.prompt_tokens)
            for s in good
            if s.completion_tokens is not None and s.prompt_tokens is not None
        ],
        "Decode (tok/s)": [1 / (s.tpot_ms * _S) for s in good if s.tpot_ms],
    }
    labels = ["min", *(f"{p}%" for p in _PEER_PERCENTILES), "max"]
    ordered = {name: sorted(values) for name, values in columns.items() if values}
    return [
        {"Percentiles": label, **{name: round(nearest_rank(values, p), 4) for name, values in ordered.items()}}
        for label, p in zip(labels, (0, *_PEER_PERCENTILES, 100), strict=True)
    ]


def nearest_rank(ordered: Sequence[float], percent: float) -> float:
    """The value at rank ceil(percent/100 x n) of sorted values: without interpolation."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _per_s(sample: RequestSample, tokens: int) -> float:
    return tokens / ((sample.e2e_ms or 0.0) * _S)


# --- guidellm ---------------------------------------------------------------------------------


def guidellm_report(levels: Sequence[MeasuredLevel]) -> dict[str, Any]:
    """One benchmark for each level, with guidellm's own meaning of its names.

    Its `time_per_output_token_ms` is the whole latency over all tokens; what others call TPOT is its
    `inter_token_latency_ms`.
    """
    return {"benchmarks": [_guidellm_benchmark(one) for one in levels]}


def _guidellm_benchmark(one: MeasuredLevel) -> dict[str, Any]:
    begin = one.started_at.timestamp()
    failed = [s for s in one.samples if s.error is not None]
    first = min(s.t_send_s for s in one.samples)

    def by_status(value: Callable[[RequestSample], float | None]) -> dict[str, Any]:
        return {
            "successful": _distribution(value(s) for s in one.good),
            "incomplete": _distribution(()),
            "errored": _distribution(value(s) for s in failed),
            "total": _distribution(value(s) for s in one.samples),
        }

    figures = {
        "request_latency": lambda s: None if s.e2e_ms is None else s.e2e_ms * _S,
        "request_streaming_iterations_count": lambda s: s.events,
        "prompt_token_count": lambda s: s.prompt_tokens,
        "output_token_count": lambda s: s.completion_tokens,
        "time_to_first_token_ms": lambda s: s.ttft_ms,
        "time_to_first_output_token_ms": lambda s: s.ttfo_ms,
        "time_per_output_token_ms": whole_latency_per_token_ms,
        "inter_token_latency_ms": lambda s: s.tpot_ms,
    }
    return {
        "type_": "generative_benchmark",
        "start_time": begin + first,
        "end_time": begin + first + one.figures.duration_s,
        "duration": one.figures.duration_s,
        "metrics": {
            "request_totals": {
                "successful": len(one.good),
                "incomplete": 0,
                "errored": len(failed),
                "total": len(one.samples),
            },
            **{name: by_status(value) for name, value in figures.items()},
        },
        "requests": {
            "successful": [_guidellm_request(s, begin) for s in one.good],
            "incomplete": [],
            "errored": [_guidellm_request(s, begin) for s in failed],
            "total": None,
        },
    }


def whole_latency_per_token_ms(sample: RequestSample) -> float | None:
    """The time before the first token in it."""
    if sample.e2e_ms is None or not sample.completion_tokens:
        return None
    return sample.e2e_ms / sample.completion_tokens


def _guidellm_request(sample: RequestSample, begin: float) -> dict[str, Any]:
    return {
        "request_id": str(sample.index),
        "request_start_time": begin + sample.t_send_s,
        "request_end_time": begin + sample.t_last_s,
        "request_latency": None if sample.e2e_ms is None else sample.e2e_ms * _S,
        "prompt_tokens": sample.prompt_tokens,
        "output_tokens": sample.completion_tokens,
        "time_to_first_token_ms": sample.ttft_ms,
        "time_to_first_output_token_ms": sample.ttfo_ms,
        "time_per_output_token_ms": whole_latency_per_token_ms(sample),
        "inter_token_latency_ms": sample.tpot_ms,
        **({} if sample.error is None else {"error": sample.error}),
    }


def _distribution(values: Iterable[float | None]) -> dict[str, Any] | None:
    """None where there is nothing to tell: a zero would be a figure."""
    ordered = sorted(float(value) for value in values if value is not None)
    if not ordered:
        return None
    names = {percent: f"p{str(percent).replace('.', ''):0>2}" for percent in _GUIDELLM_PERCENTILES}
    names[0.1] = "p001"
    return {
        "mean": statistics.fmean(ordered),
        "median": nearest_rank(ordered, 50),
        "mode": statistics.mode(ordered),
        "variance": statistics.pvariance(ordered),
        "std_dev": statistics.pstdev(ordered),
        "min": ordered[0],
        "max": ordered[-1],
        "count": len(ordered),
        "total_sum": math.fsum(ordered),
        "percentiles": {name: nearest_rank(ordered, percent) for percent, name in names.items()},
    }


# --- of all -----------------------------------------------------------------------------------


def _tokens(good: Sequence[RequestSample]) -> tuple[int, int]:
    return sum(s.prompt_tokens or 0 for s in good), sum(s.completion_tokens or 0 for s in good)


def _burstiness(level: LoadLevel) -> float | None:
    """The shape of gamma arrivals; evenly spaced ones are those of an endless shape, for which there is no number."""
    if level.arrivals is Arrivals.CONSTANT:
        return None
    if level.arrivals is Arrivals.GAMMA and level.burstiness is not None:
        return level.burstiness
    return 1.0
