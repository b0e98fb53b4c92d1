"""The paths of one server: vLLM's and SGLang's, each with the bodies that their clients know."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Any

from workers.simulator.http.answers import JSON, StreamedAnswer, WholeAnswer, Wording, encoded
from workers.simulator.http.connection import Exchange
from workers.simulator.http.disaggregation import Intake
from workers.simulator.http.engine import Engine
from workers.simulator.http.metrics import CONTENT_TYPE, Metrics
from workers.simulator.http.openai_requests import parse_chat, parse_completion, parse_tokenize
from workers.simulator.http.pace import Pace
from workers.simulator.http.refusal import Refusal
from workers.simulator.start.booting import Booted, Family

_DEAD = Refusal("EngineCore encountered an issue. See stack trace (above) for the root cause.", 500)
_FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the "
    b"operation will not be performed.)\n"
)
Handler = Callable[[Exchange], None]


class Routes:
    """Answers every request of a server."""

    def __init__(
        self, engine: Engine, intake: Intake, metrics: Metrics, booted: Booted, pace: Pace | None = None
    ) -> None:
        self._engine = engine
        self._intake = intake
        self._metrics = metrics
        self._booted = booted
        self._pace = pace
        self._sglang = booted.surface.family is Family.SGLANG
        self._dead = encoded(_DEAD.body(nested=not self._sglang))
        self._created = int(time.time())
        self._numbers = count(1)
        paths: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/v1/models": {"GET": self._models},
            "/v1/completions": {"POST": self._complete},
            "/v1/chat/completions": {"POST": self._complete},
            "/tokenize": {"POST": self._tokenize},
        }
        own = self._paths_of_sglang() if self._sglang else self._paths_of_vllm()
        self._paths = paths | own | intake.paths()

    def handle(self, exchange: Exchange) -> None:
        """Answer one request, now or as tokens come."""
        handlers = self._paths.get(exchange.path)
        if handlers is None:
            _json(exchange, 404, {"detail": "Not Found"})
        elif (handler := handlers.get(exchange.method)) is None:
            allowed = [("allow", ", ".join(handlers))]
            exchange.respond(405, encoded({"detail": "Method Not Allowed"}), JSON, allowed)
        else:
            try:
                handler(exchange)
            except Refusal as refusal:
                _json(exchange, refusal.status, refusal.body(nested=not self._sglang))

    def _paths_of_vllm(self) -> dict[str, dict[str, Handler]]:
        version = self._booted.cost.system.stack.engine_version
        return {
            "/ping": {"GET": self._health, "POST": self._health},
            "/version": {"GET": lambda exchange: _json(exchange, 200, {"version": version})},
            "/metrics": {"GET": self._metrics_text},
            "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
        }

    def _paths_of_sglang(self) -> dict[str, dict[str, Handler]]:
        booted = self._booted
        facts = {
            **booted.surface.arguments,
            "served_model_name": booted.served_name,
            "version": booted.cost.system.stack.engine_version,
            "max_total_num_tokens": booted.memory.kv_tokens,
        }
        model = {"model_path": booted.cost.system.model, "tokenizer_path": booted.cost.system.model}

        def server(exchange: Exchange) -> None:
            _json(exchange, 200, facts)

        def served(exchange: Exchange) -> None:
            _json(exchange, 200, {**model, "is_generation": True})

        paths: dict[str, dict[str, Handler]] = {
            "/health_generate": {"GET": self._health},
            "/server_info": {"GET": server},
            "/get_server_info": {"GET": server},
            "/model_info": {"GET": served},
            "/get_model_info": {"GET": served},
            "/flush_cache": {"GET": self._flush_cache, "POST": self._flush_cache},
        }
        return paths | ({"/metrics": {"GET": self._metrics_text}} if booted.surface.metrics else {})

    def _health(self, exchange: Exchange) -> None:
        exchange.respond(200 if self._engine.alive else 503, b"")

    def _metrics_text(self, exchange: Exchange) -> None:
        exchange.respond(200, self._metrics.text(), CONTENT_TYPE)

    def _reset_prefix_cache(self, exchange: Exchange) -> None:
        self._engine.reset_prefix_cache()
        exchange.respond(200, b"")

    def _flush_cache(self, exchange: Exchange) -> None:
        """SGLang flushes an idle server only, and says so in the status alone."""
        exchange.respond(200 if self._engine.reset_prefix_cache() else 400, _FLUSHED)

    def _models(self, exchange: Exchange) -> None:
        name = self._booted.served_name
        card = {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "sglang" if self._sglang else "vllm",
            "root": name,
            "parent": None,
            "max_model_len": self._booted.cost.config.max_model_len,
        }
        _json(exchange, 200, {"object": "list", "data": [card]})

    def _tokenize(self, exchange: Exchange) -> None:
        self._must_be_json(exchange)
        model, tokens = parse_tokenize(exchange.body)
        self._must_be_served(model)
        length = self._booted.cost.config.max_model_len
        found = {"count": len(tokens), "max_model_len": length, "tokens": list(tokens), "token_strs": None}
        _json(exchange, 200, found)

    def _complete(self, exchange: Exchange) -> None:
        self._must_be_json(exchange)
        config = self._booted.cost.config
        parse = parse_chat if exchange.path.endswith("chat/completions") else parse_completion
        asked = parse(exchange.body, config.max_model_len)
        exchange.body = b""
        self._must_be_served(asked.model)
        if not self._engine.alive:
            raise _DEAD
        sequences = asked.sequences(config.block_size)
        name = asked.model if self._sglang and asked.model else self._booted.served_name
        cached = self._booted.surface.cached_tokens
        wording = Wording(asked, sequences, name, next(self._numbers), cached=cached)
        if asked.stream:
            streamed = StreamedAnswer(exchange, wording, sequences, self._dead, self._pace)
            self._intake.submit(asked.handover, sequences, streamed)
        else:
            whole = WholeAnswer(exchange, wording, sequences, self._dead)
            self._intake.submit(asked.handover, sequences, whole)
        exchange.on_gone = lambda: self._intake.drop(sequences)

    def _must_be_json(self, exchange: Exchange) -> None:
        kind = exchange.headers.get(b"content-type", b"").split(b";", 1)[0].strip().lower()
        if kind != b"application/json":
            raise Refusal("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed")

    def _must_be_served(self, model: str | None) -> None:
        """SGLang answers under any name."""
        if not self._sglang and model not in (None, self._booted.served_name):
            raise Refusal(f"The model `{model}` does not exist.", status=404, parameter="model")


def _json(exchange: Exchange, status: int, content: dict[str, Any]) -> None:
    exchange.respond(status, encoded(content), JSON)
