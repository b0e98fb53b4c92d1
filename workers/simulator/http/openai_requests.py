"""What a client may ask of the two completion endpoints, and what is refused in the engines' own words."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from workers.simulator.http.refusal import Refusal, validation_refusal
from workers.simulator.pd.desk import Handover
from workers.simulator.serving.noise import request_seed
from workers.simulator.serving.prefix_cache import block_hashes
from workers.simulator.serving.sequence import Sequence

WORD = " token"  # the text of every generated token
DEFAULT_MAX_TOKENS = 16  # the OpenAI API's default for completions
CHAT_OVERHEAD_TOKENS = 8  # template tokens around each message
CHARACTERS_PER_TOKEN = 4
VOCABULARY = 151_936
MOST_LOGPROBS = 20
MOST_CHOICES = 128
TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]


class StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Common(BaseModel):
    """Unknown fields (ignore_eos, top_k, tools and the like) do not change a simulated answer."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None

    @model_validator(mode="after")
    def _sampling(self) -> _Common:
        if self.stream_options is not None and not self.stream:
            raise ValueError("Stream options can only be defined when `stream=True`.")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"temperature must be non-negative, got {self.temperature}.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"n must be 1 when using greedy sampling, got {self.n}.")
        return self

    @property
    def handover(self) -> Handover | None:
        """Where the other server of a disaggregated deployment is, and under which room both know the request."""
        if self.bootstrap_room is None or self.bootstrap_host is None or self.bootstrap_port is None:
            return None
        return Handover(self.bootstrap_host, self.bootstrap_port, self.bootstrap_room)

    @property
    def stops(self) -> list[str]:
        """Stop strings that can ever be met."""
        return [s for s in ([self.stop] if isinstance(self.stop, str) else self.stop or []) if s]


R = TypeVar("R", bound=BaseModel)


class CompletionRequest(_Common):
    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    logprobs: int | None = Field(default=None, ge=0)


class Message(BaseModel):
    role: str
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(str(part.get("text", part)) for part in self.content)
        return self.content or ""


class ChatRequest(_Common):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _logprobs(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("when using `top_logprobs`, `logprobs` must be set to true.")
        return self


class TokenizeRequest(BaseModel):
    """Either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its token ids, and the seed of what is drawn for it."""

    tokens: Tokens[int]
    seed: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in the simulator's own terms.

    Each prompt is answered `choices` times with `max_tokens` tokens, of whose text `characters` are shown;
    `stop` is the stop string that ends it, None where its length does.
    """

    chat: bool
    model: str | None
    prompts: tuple[Prompt, ...]
    choices: int
    max_tokens: int
    stop: str | None
    characters: int
    logprobs: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    handover: Handover | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.tokens) for prompt in self.prompts)

    def sequences(self, block_size: int) -> list[Sequence]:
        """What the engine is to compute: the choices of the first prompt, then those of the next."""
        found: list[Sequence] = []
        for prompt in self.prompts:
            blocks = block_hashes(prompt.tokens, block_size)
            length = len(prompt.tokens)
            found += [
                Sequence(prompt_tokens=length, max_tokens=self.max_tokens, seed=prompt.seed + choice, blocks=blocks)
                for choice in range(self.choices)
            ]
        return found


def parse_completion(body: bytes, max_model_len: int) -> Asked:
    """Raises Refusal."""
    request = _parsed(CompletionRequest, body)
    given: Any = request.prompt
    several = isinstance(given, list) and bool(given) and isinstance(given[0], str | list)
    prompts = given if several else [given]
    if not all(prompts):
        raise Refusal("Either prompt or prompt_embeds must be provided and non-empty.")
    taken = tuple(Prompt(_tokens(prompt), request_seed(prompt)) for prompt in prompts)
    return _asked(request, taken, request.max_tokens or DEFAULT_MAX_TOKENS, request.logprobs, max_model_len)


def parse_chat(body: bytes, max_model_len: int) -> Asked:
    """Raises Refusal."""
    request = _parsed(ChatRequest, body)
    prompt = _chat_prompt(request.messages)
    limit = request.max_completion_tokens or request.max_tokens or max(max_model_len - len(prompt.tokens), 1)
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return _asked(request, (prompt,), limit, logprobs, max_model_len)


def parse_tokenize(body: bytes) -> tuple[str | None, Tokens[int]]:
    """The asked model, and the token ids. Raises Refusal."""
    request = _parsed(TokenizeRequest, body)
    if request.messages:
        return request.model, _chat_prompt(request.messages).tokens
    if request.prompt is None:
        raise Refusal("Either prompt or messages must be provided.")
    return request.model, _tokens(request.prompt)


def _parsed(model: type[R], body: bytes) -> R:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise validation_refusal(error) from error


def _chat_prompt(messages: list[Message]) -> Prompt:
    tokens: list[int] = []
    for message in messages:
        tokens += _tokens(message.role)[:1] * CHAT_OVERHEAD_TOKENS
        tokens += _tokens(message.text)
    return Prompt(tokens, request_seed("\n".join(message.text for message in messages)))


def _tokens(prompt: str | list[int]) -> list[int]:
    """Token ids; a text has as many as a tokenizer would make of it, and the same text has the same."""
    if isinstance(prompt, list):
        return prompt
    pieces = range(0, max(len(prompt), 1), CHARACTERS_PER_TOKEN)
    return [zlib.crc32(prompt[at : at + CHARACTERS_PER_TOKEN].encode()) % VOCABULARY for at in pieces]


def _asked(
    request: _Common, prompts: tuple[Prompt, ...], limit: int, logprobs: int | None, max_model_len: int
) -> Asked:
    longest = max(len(prompt.tokens) for prompt in prompts)
    if longest + limit > max_model_len:
        raise Refusal(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested {longest + limit} "
            f"tokens ({longest} in the prompt, {limit} for the completion)."
        )
    if logprobs is not None and logprobs > MOST_LOGPROBS:
        raise Refusal(
            f"Requested sample logprobs of {logprobs}, which is greater than max allowed: {MOST_LOGPROBS}",
            parameter="logprobs",
        )
    max_tokens, characters, stop = _stopped(request.stops, limit, request.include_stop_str_in_output)
    options = request.stream_options or StreamOptions()
    return Asked(
        chat=isinstance(request, ChatRequest),
        model=request.model,
        prompts=prompts,
        choices=request.n,
        max_tokens=max_tokens,
        stop=stop,
        characters=characters,
        logprobs=logprobs is not None,
        stream=request.stream,
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage_stats,
        handover=request.handover,
    )


def _stopped(stops: list[str], limit: int, included: bool) -> tuple[int, int, str | None]:
    """Tokens, characters of them that are shown, and the stop string met first: all text is known beforehand."""
    longest = max(map(len, stops), default=0)
    text = WORD * min(limit, longest // len(WORD) + 2)
    met = [(text.index(stop) + len(stop), stop) for stop in stops if stop in text]
    if not met:
        return limit, limit * len(WORD), None
    end, stop = min(met)
    return math.ceil(end / len(WORD)), end if included else end - len(stop), stop
