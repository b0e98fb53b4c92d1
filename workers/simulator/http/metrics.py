"""vLLM's Prometheus metrics under their own names, so that a scraper cannot tell the difference."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LABELS = ("model_name", "engine")
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)


class Metrics:
    """One server's registry. Observations take seconds, as vLLM's do."""

    def __init__(self, model_name: str, draft_tokens: int) -> None:
        self._registry = CollectorRegistry()
        self._names = (model_name, "0")
        self.running = self._gauge("num_requests_running", "Requests in the running batch.")
        self.waiting = self._gauge("num_requests_waiting", "Requests waiting to be scheduled.")
        self.kv_usage = self._gauge("kv_cache_usage_perc", "KV cache usage; 1 means 100 percent.")
        self.preemptions = self._counter("num_preemptions", "Cumulative number of preemptions.")
        self.prefix_queries = self._counter("prefix_cache_queries", "Prefix cache queries in tokens.")
        self.prefix_hits = self._counter("prefix_cache_hits", "Prefix cache hits in tokens.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prefill tokens processed.")
        self.generation_tokens = self._counter("generation_tokens", "Generation tokens processed.")
        self.ttft = self._histogram("time_to_first_token_seconds", "Time to first token.", _TTFT)
        self.itl = self._histogram("inter_token_latency_seconds", "Time between outputs of a request.", _TOKEN)
        self.tpot = self._histogram("request_time_per_output_token_seconds", "Mean time per output token.", _TOKEN)
        self.e2e = self._histogram("e2e_request_latency_seconds", "Request latency.", _REQUEST)
        success = Counter(
            "vllm:request_success", "Finished requests.", (*_LABELS, "finished_reason"), registry=self._registry
        )
        self.success = success.labels(*self._names, "length")
        self._drafts: tuple[Counter, Counter, Counter] | None = None
        if draft_tokens:
            self._drafts = (
                self._counter("spec_decode_num_drafts", "Drafts."),
                self._counter("spec_decode_num_draft_tokens", "Draft tokens."),
                self._counter("spec_decode_num_accepted_tokens", "Accepted draft tokens."),
            )
            positions = Counter(
                "vllm:spec_decode_num_accepted_tokens_per_pos",
                "Accepted draft tokens by position.",
                (*_LABELS, "position"),
                registry=self._registry,
            )
            self._positions = [positions.labels(*self._names, str(i)) for i in range(draft_tokens)]

    def drafted(self, tokens: int, accepted: int) -> None:
        """One sequence's drafts of one step."""
        if self._drafts is None:
            return
        for counter, amount in zip(self._drafts, (1, tokens, accepted), strict=True):
            counter.inc(amount)
        for position in self._positions[:accepted]:
            position.inc()

    def text(self) -> bytes:
        """The exposition in Prometheus's text format."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"vllm:{name}", about, _LABELS, registry=self._registry).labels(*self._names)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"vllm:{name}", about, _LABELS, registry=self._registry).labels(*self._names)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        metric = Histogram(f"vllm:{name}", about, _LABELS, buckets=buckets, registry=self._registry)
        return metric.labels(*self._names)
