"""The engines' Prometheus metrics under their own names, so that a scraper cannot tell the difference."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from workers.simulator.serving.batching import Batcher
from workers.simulator.start.booting import Family

CONTENT_TYPE = CONTENT_TYPE_LATEST
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
# What SGLang calls the things that vLLM's names below stand for. What is missing here it does not tell.
_SGLANG = {
    "num_requests_running": "num_running_reqs",
    "num_requests_waiting": "num_queue_reqs",
    "kv_cache_usage_perc": "token_usage",
    "prefix_cache_hits": "cached_tokens",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_latency_seconds",
    "e2e_request_latency_seconds": "e2e_request_latency_seconds",
    "request_success": "num_requests",
}


class Metrics:
    """One server's registry. Observations take seconds, as the engines' do."""

    def __init__(self, model_name: str, draft_tokens: int, family: Family = Family.VLLM) -> None:
        self._registry = CollectorRegistry()
        self._untold = CollectorRegistry()  # what this engine does not tell is counted all the same
        self._family = family
        self._labels = {"model_name": model_name, "engine": "0"}
        if family is Family.SGLANG:
            self._labels = {"model_name": model_name, "engine_type": "unified"}
        self._running = self._gauge("num_requests_running", "Requests in the running batch.")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting to be scheduled.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV cache usage; 1 means 100 percent.")
        self._preemptions = self._counter("num_preemptions", "Cumulative number of preemptions.")
        self._prefix_queries = self._counter("prefix_cache_queries", "Prefix cache queries in tokens.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Prefix cache hits in tokens.")
        self._seen = [0, 0, 0]
        self.prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        self.generation_tokens = self._counter("generation_tokens", "Generation tokens processed.")
        self.ttft = self._histogram("time_to_first_token_seconds", "Time to first token.", _TTFT)
        self.itl = self._histogram("inter_token_latency_seconds", "Time between outputs of a request.", _TOKEN)
        self.tpot = self._histogram("request_time_per_output_token_seconds", "Mean time per output token.", _TOKEN)
        self.e2e = self._histogram("e2e_request_latency_seconds", "Request latency.", _REQUEST)
        reasons = {} if family is Family.SGLANG else {"finished_reason": "length"}
        self.success = self._counter("request_success", "Finished requests.", **reasons)
        self._drafts: tuple[Counter, Counter, Counter] | None = None
        if draft_tokens:
            self._drafts = (
                self._counter("spec_decode_num_drafts", "Drafts."),
                self._counter("spec_decode_num_draft_tokens", "Draft tokens."),
                self._counter("spec_decode_num_accepted_tokens", "Accepted draft tokens."),
            )
            registry, name = self._place("spec_decode_num_accepted_tokens_per_pos")
            about = "Accepted draft tokens by position."
            positions = Counter(name, about, (*self._labels, "position"), registry=registry)
            self._positions = [positions.labels(*self._labels.values(), str(i)) for i in range(draft_tokens)]

    def drafted(self, tokens: int, accepted: int) -> None:
        """One sequence's drafts of one step."""
        if self._drafts is None:
            return
        for counter, amount in zip(self._drafts, (1, tokens, accepted), strict=True):
            counter.inc(amount)
        for position in self._positions[:accepted]:
            position.inc()

    def look(self, batcher: Batcher) -> None:
        """Take over the scheduler's state."""
        self._running.set(len(batcher.running))
        self._waiting.set(len(batcher.waiting))
        self._kv_usage.set(batcher.kv_usage())
        counters = (self._preemptions, self._prefix_queries, self._prefix_hits)
        counts = [batcher.preemptions, batcher.prefix_queries, batcher.prefix_hits]
        if counts != self._seen:
            for counter, now, before in zip(counters, counts, self._seen, strict=True):
                counter.inc(now - before)
            self._seen = counts

    def text(self) -> bytes:
        """The exposition in Prometheus's text format."""
        return generate_latest(self._registry)

    def _place(self, name: str) -> tuple[CollectorRegistry, str]:
        """Where a metric belongs, and its name there."""
        if self._family is Family.VLLM:
            return self._registry, f"vllm:{name}"
        known = _SGLANG.get(name)
        return (self._untold, name) if known is None else (self._registry, f"sglang:{known}")

    def _gauge(self, name: str, about: str) -> Gauge:
        registry, name = self._place(name)
        return Gauge(name, about, tuple(self._labels), registry=registry).labels(*self._labels.values())

    def _counter(self, name: str, about: str, **more: str) -> Counter:
        registry, name = self._place(name)
        labels = self._labels | more
        return Counter(name, about, tuple(labels), registry=registry).labels(*labels.values())

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        registry, name = self._place(name)
        metric = Histogram(name, about, tuple(self._labels), buckets=buckets, registry=registry)
        return metric.labels(*self._labels.values())
