"""What a client may ask of the two completion endpoints."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from workers.simulator.serving.batching import Sequence
from workers.simulator.serving.noise import request_seed

DEFAULT_MAX_TOKENS = 16  # the OpenAI API's default for completions
CHAT_OVERHEAD_TOKENS = 8  # template tokens around each message
CHARACTERS_PER_TOKEN = 4


class BadRequest(Exception):
    """The request can't be served; `status` is the HTTP status, the text the server's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Common(BaseModel):
    """Unknown fields (temperature, ignore_eos, top_p and the like) do not change a simulated answer."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=1)
    max_tokens: int | None = Field(default=None, ge=1)


R = TypeVar("R", bound=_Common)


class CompletionRequest(_Common):
    prompt: str | list[int] | list[str] | list[list[int]]


class Message(BaseModel):
    role: str
    content: str | list[dict[str, Any]] = ""


class ChatRequest(_Common):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)


class Asked(BaseModel):
    """A request in the simulator's own terms."""

    prompt_tokens: int
    max_tokens: int
    seed: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    model: str | None

    def sequence(self) -> Sequence:
        return Sequence(prompt_tokens=self.prompt_tokens, max_tokens=self.max_tokens, seed=self.seed)


def parse_completion(body: bytes, max_model_len: int) -> Asked:
    """Raises BadRequest."""
    request = _parsed(CompletionRequest, body)
    prompt: Any = request.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise BadRequest("only one prompt a request is supported")
        prompt = prompt[0]
    if not prompt:
        raise BadRequest("Either prompt or prompt_embeds must be provided and non-empty.")
    tokens = len(prompt) if isinstance(prompt, list) else _text_tokens(prompt)
    return _asked(request, tokens, request.max_tokens or DEFAULT_MAX_TOKENS, request_seed(prompt), max_model_len)


def parse_chat(body: bytes, max_model_len: int) -> Asked:
    """Raises BadRequest."""
    request = _parsed(ChatRequest, body)
    texts = [m.content if isinstance(m.content, str) else str(m.content) for m in request.messages]
    tokens = sum(_text_tokens(text) + CHAT_OVERHEAD_TOKENS for text in texts)
    limit = request.max_completion_tokens or request.max_tokens or max(max_model_len - tokens, 1)
    return _asked(request, tokens, limit, request_seed("\n".join(texts)), max_model_len)


def _parsed(model: type[R], body: bytes) -> R:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise BadRequest(str(error)) from error


def _text_tokens(text: str) -> int:
    return max(-(-len(text) // CHARACTERS_PER_TOKEN), 1)


def _asked(request: _Common, tokens: int, limit: int, seed: int, max_model_len: int) -> Asked:
    if tokens + limit > max_model_len:
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {tokens + limit} "
            f"tokens ({tokens} in the prompt, {limit} for the completion)."
        )
    options = request.stream_options or StreamOptions()
    return Asked(
        prompt_tokens=tokens,
        max_tokens=limit,
        seed=seed,
        stream=request.stream,
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage_stats,
        model=request.model,
    )
