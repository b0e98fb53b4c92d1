"""The HTTP surface as a bare ASGI application: vLLM's paths, bodies and event streams."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from itertools import count
from typing import Any

from workers.simulator.http.engine import Engine, EngineDead, Stream
from workers.simulator.http.metrics import CONTENT_TYPE, Metrics
from workers.simulator.http.openai_requests import Asked, BadRequest, parse_chat, parse_completion

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

WORD = " token"
MAX_BODY_BYTES = 32 * 2**20


class HttpApp:
    """Routes of one server. `engine_version` is what /version tells."""

    def __init__(
        self, engine: Engine, metrics: Metrics, model_name: str, max_model_len: int, engine_version: str
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._model = model_name
        self._max_model_len = max_model_len
        self._version = engine_version
        self._created = int(time.time())
        self._numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        match scope["method"], scope["path"]:
            case "GET", "/health" | "/ping":
                await _respond(send, 200 if self._engine.alive else 503, b"", "text/plain")
            case "GET", "/v1/models":
                await _json(send, 200, self._models())
            case "GET", "/version":
                await _json(send, 200, {"version": self._version})
            case "GET", "/metrics":
                await _respond(send, 200, self._metrics.text(), CONTENT_TYPE)
            case "POST", "/reset_prefix_cache":
                await _respond(send, 200, b"", "text/plain")
            case "POST", "/v1/completions" | "/v1/chat/completions":
                await self._complete(scope["path"].endswith("chat/completions"), receive, send)
            case _, "/health" | "/v1/models" | "/v1/completions" | "/v1/chat/completions":
                await _json(send, 405, {"detail": "Method Not Allowed"})
            case _:
                await _json(send, 404, {"detail": "Not Found"})

    def _models(self) -> dict[str, Any]:
        card = {
            "id": self._model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self._model,
            "parent": None,
            "max_model_len": self._max_model_len,
        }
        return {"object": "list", "data": [card]}

    async def _complete(self, chat: bool, receive: Receive, send: Send) -> None:
        try:
            body = await _body(receive)
            asked = (parse_chat if chat else parse_completion)(body, self._max_model_len)
            if asked.model not in (None, self._model):
                raise BadRequest(f"The model `{asked.model}` does not exist.", status=404)
            stream = self._engine.submit(asked.sequence())
        except BadRequest as error:
            await _json(send, error.status, _error(error.message, error.status))
            return
        except EngineDead:
            await _json(send, 500, _error("EngineCore encountered an issue.", 500))
            return
        gone = asyncio.ensure_future(_disconnected(receive))
        answer = _Answer(chat, self._model, next(self._numbers), asked)
        reply = self._stream if asked.stream else self._whole
        work = asyncio.ensure_future(reply(answer, stream, send))
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self._engine.drop(stream)
            for task in (gone, work):
                task.cancel()
            await asyncio.gather(gone, work, return_exceptions=True)

    async def _stream(self, answer: _Answer, stream: Stream, send: Send) -> None:
        await _start(send, 200, "text/event-stream; charset=utf-8")
        if answer.chat:
            await _event(send, answer.role_event())
        sent = 0
        try:
            while sent < answer.asked.max_tokens:
                tokens = await stream.next_tokens()
                sent += tokens
                await _event(send, answer.token_event(tokens, sent))
        except EngineDead:
            await _event(send, json.dumps(_error("EngineCore encountered an issue.", 500)))
        else:
            if answer.asked.include_usage:
                await _event(send, answer.usage_event(sent))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async def _whole(self, answer: _Answer, stream: Stream, send: Send) -> None:
        sent = 0
        try:
            while sent < answer.asked.max_tokens:
                sent += await stream.next_tokens()
        except EngineDead:
            await _json(send, 500, _error("EngineCore encountered an issue.", 500))
        else:
            await _json(send, 200, answer.whole(sent))


class _Answer:
    """Bodies of one answer. The constant head of an event is encoded once."""

    def __init__(self, chat: bool, model: str, number: int, asked: Asked) -> None:
        self.chat = chat
        self.asked = asked
        kind = ("chatcmpl", "chat.completion") if chat else ("cmpl", "text_completion")
        self._head = {"id": f"{kind[0]}-{number:08d}", "object": kind[1], "created": int(time.time()), "model": model}
        event = {**self._head, "object": "chat.completion.chunk"} if chat else self._head
        self._prefix = json.dumps(event)[:-1]

    def role_event(self) -> str:
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return f'{self._prefix}, "choices": [{json.dumps(choice)}]}}'

    def token_event(self, tokens: int, sent: int) -> str:
        reason = '"length"' if sent >= self.asked.max_tokens else "null"
        text = f'"delta": {{"content": "{WORD * tokens}"}}' if self.chat else f'"text": "{WORD * tokens}"'
        usage = f', "usage": {json.dumps(self._usage(sent))}' if self.asked.continuous_usage else ""
        choice = f'{{"index": 0, {text}, "logprobs": null, "finish_reason": {reason}}}'
        return f'{self._prefix}, "choices": [{choice}]{usage}}}'

    def usage_event(self, sent: int) -> str:
        return f'{self._prefix}, "choices": [], "usage": {json.dumps(self._usage(sent))}}}'

    def whole(self, sent: int) -> dict[str, Any]:
        text = WORD * sent
        body: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **body, "logprobs": None, "finish_reason": "length"}
        return {**self._head, "choices": [choice], "usage": self._usage(sent)}

    def _usage(self, sent: int) -> dict[str, int]:
        prompt = self.asked.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": sent, "total_tokens": prompt + sent}


def _error(message: str, status: int) -> dict[str, Any]:
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


async def _body(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the client went away")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MAX_BODY_BYTES:
            raise BadRequest("the body is too large", status=413)
        more = message.get("more_body", False)
    return b"".join(chunks)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def _start(send: Send, status: int, content_type: str, length: int | None = None) -> None:
    headers = [(b"content-type", content_type.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _event(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})


async def _respond(send: Send, status: int, body: bytes, content_type: str) -> None:
    await _start(send, status, content_type, len(body))
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _json(send: Send, status: int, content: dict[str, Any]) -> None:
    await _respond(send, status, json.dumps(content).encode(), "application/json")
