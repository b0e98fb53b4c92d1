"""The rules by which a measurement is doubted, as data: what is compared with what, how grave it is, who showed it.

A rule costs trust only where the figures that are compared may be wrong by it. What merely explains a figure is a
remark: its trust is `ok`.
"""

from __future__ import annotations

from autotune.domain.measurement import Trust
from autotune.domain.value import Value


class Rule(Value):
    """One rule. `threshold` in `unit`, where it compares a number; `sentence` says what it means for the figures."""

    id: str
    trust: Trust
    sentence: str
    source: str
    threshold: float | None = None
    unit: str = ""


def _rule(
    name: str, trust: Trust, sentence: str, source: str, threshold: float | None = None, unit: str = ""
) -> tuple[str, Rule]:
    return name, Rule(id=name, trust=trust, sentence=sentence, source=source, threshold=threshold, unit=unit)


_OK, _WARN, _INVALID = Trust.OK, Trust.WARN, Trust.INVALID

RULES: dict[str, Rule] = dict(
    (
        _rule("nothing_measured", _INVALID, "no request of a level ended as planned", "there is nothing to compare"),
        _rule(
            "stream_error",
            _WARN,
            "requests failed: refused, reset, cut short, timed out, or with an error inside the stream",
            "an error inside a good answer counted as a success (vllm-project/vllm#57519, sgl-project/sglang#38868)",
            0.0,
            "share of requests",
        ),
        _rule(
            "stream_errors",
            _INVALID,
            "so many requests failed that the others had an easier time than the level asks for",
            "an overloaded server that refuses a third looked fast (SemiAnalysisAI/InferenceX#357)",
            0.01,
            "share of requests",
        ),
        _rule(
            "no_usage",
            _INVALID,
            "the server does not say how many tokens it made; the length that was asked for is never taken instead",
            "TPOT wrong by the requested length (sgl-project/sglang#10746)",
        ),
        _rule("no_text", _INVALID, "answers without text have no token times", "modelscope/evalscope#1694"),
        _rule(
            "buffered_stream",
            _INVALID,
            "whole answers arrive in one read: a proxy or the server collects them, and there is no pace to see",
            "a TPOT of 0.01 ms behind a buffering proxy (kekzl/imp#754)",
            0.50,
            "share of answers",
        ),
        _rule(
            "no_anchor",
            _INVALID,
            "too many answers without a TPOT: the rest is a selection",
            "late reads merge first events; starved clients were off by up to 18 %",
            0.25,
            "share of answers",
        ),
        _rule(
            "coalesced",
            _WARN,
            "first tokens came in one read with later ones: their TTFT is an upper bound. It stays in the percentiles, "
            "so that a limit that holds for the bound holds for the truth",
            "only the last of merged TCP segments keeps its arrival time",
            0.10,
            "share of answers",
        ),
        _rule(
            "short_output",
            _INVALID,
            "answers of another length than asked are other work",
            "a crashed sampler that stops at once looks fast",
        ),
        _rule(
            "prompt_length",
            _WARN,
            "the server counts another number of prompt tokens than was asked for",
            "a chat template or another tokenizer",
            0.005,
            "of the asked length, and more than one token",
        ),
        _rule(
            "cache_hits",
            _WARN,
            "prompts that share nothing were found in the prefix cache: somebody sent them before",
            "workers that share a seed found 93 % of random prompts (kubernetes-sigs/inference-perf#340)",
            0.01,
            "share of prompt tokens",
        ),
        _rule(
            "client_lag",
            _INVALID,
            "arrival times are from user space and late",
            "user-space times were off by up to 9 % in the mean on a busy host",
            2.0,
            "ms at p99, or 20 % of the time between tokens where that is more",
        ),
        _rule(
            "client_behind",
            _OK,
            "the load generator read late; arrival times are the kernel's, and right all the same",
            "errors of 0.05 % at most with reads up to 1.2 s late",
            2.0,
            "ms at p99, or 20 % of the time between tokens where that is more",
        ),
        _rule(
            "client_cpu",
            _WARN,
            "the load process was near the most that one core gives",
            "above it, requests are sent late and reads merge",
            0.70,
            "of a core",
        ),
        _rule(
            "client_switches",
            _OK,
            "others took the load process's core away",
            "kernel arrival times survive it; merged reads are counted by their own rules",
            200.0,
            "involuntary context switches a second",
        ),
        _rule(
            "host_steal",
            _WARN,
            "other guests of the machine took processor time, from the server too where it runs here",
            "shared hosts",
            0.02,
            "of the processor time",
        ),
        _rule(
            "clock",
            _WARN,
            "wall clock and monotonic clock moved apart by more than a clock is steered: it was set, or the host slept",
            "kernel arrival times are wall clock times",
            500.0,
            "millionths of the window, and more than 50 us",
        ),
        _rule(
            "cap_bound",
            _WARN,
            "the most in flight, not the schedule, set the pace: times from sending leave out the wait before it",
            "a wait of 1.9 s that no figure showed (vllm-project/vllm#54101)",
            5.0,
            "ms behind the schedule at p99, or 5 % of the time between requests where that is more",
        ),
        _rule(
            "send_lag",
            _WARN,
            "the load generator's host was too busy to keep the schedule",
            "realised rates below the offered one (modelscope/evalscope#1366)",
            5.0,
            "ms behind the schedule at p99, or 5 % of the time between requests where that is more",
        ),
        _rule(
            "off_schedule",
            _INVALID,
            "the load generator's host was so late that other arrivals were offered than asked for",
            "realised rates below the offered one (modelscope/evalscope#1366)",
            50.0,
            "ms behind the schedule at p99, or the time between two requests where that is more",
        ),
        _rule(
            "slot_idle",
            _WARN,
            "streams waited between an answer and their next request: fewer were in flight than the level says",
            "a gap of 0.92 s after answers of 0.74 s (modelscope/evalscope#1101)",
            0.01,
            "of the steady window, and more than 2 ms a request",
        ),
        _rule(
            "slots_idle",
            _INVALID,
            "streams waited so long that another load was measured than the level says",
            "a gap of 0.92 s after answers of 0.74 s (modelscope/evalscope#1101)",
            0.10,
            "of the steady window, and more than 20 ms a request",
        ),
        _rule(
            "supply_limited",
            _OK,
            "the server kept up with what was offered: throughput is the offer's, not its capacity",
            "a published throughput that was 87 % of what was offered",
            0.80,
            "of the offered tokens a second",
        ),
        _rule(
            "cap_never_binding",
            _OK,
            "the most in flight was never near: the level's concurrency played no part",
            "27 of 48 in flight in a published run",
            0.80,
            "of the concurrency, mean in flight",
        ),
        _rule(
            "few_requests",
            _WARN,
            "so few requests show a large difference at most, and no percentile but the median",
            "intervals of few correlated requests cover a third of what they promise",
            16.0,
            "requests",
        ),
        _rule(
            "few_batches",
            _OK,
            "too few batches in the steady window for an interval",
            "intervals of few correlated requests cover a third of what they promise",
            4.0,
            "batches of as many requests as are in flight",
        ),
        _rule(
            "not_steady",
            _WARN,
            "the pace of the two halves of the steady window differs by more than chance explains",
            "warm-up that was too short, or a host that slows down",
            0.02,
            "of the pace",
        ),
        _rule(
            "server_mismatch",
            _INVALID,
            "the server's counters contradict what was received: others used it, or a count or a clock is wrong",
            "starved clients reported a fiftieth of the server's own time per token",
        ),
        _rule("server_finding", _WARN, "the server's counters explain or doubt a figure", "the server's own metrics"),
        _rule(
            "preempted",
            _WARN,
            "requests were preempted: the KV cache does not hold this load, and some work was done twice",
            "the server's own metrics",
        ),
        _rule(
            "ttft_bimodal",
            _WARN,
            "with one request at a time, some first tokens took several times the others' time",
            "cold connections, kernels compiled on the way, a clock governor (ai-dynamo/aiperf#1424)",
            3.0,
            "p90 / p50 of TTFT, from 8 requests on",
        ),
    )
)
