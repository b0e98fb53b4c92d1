"""The public `openai` client, unchanged, against a simulated server."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.simulator.server_process import PLAIN, serving

HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with (
        serving(tmp_path_factory.mktemp("server") / "log", *PLAIN) as (http, _),
        openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0) as opened,
    ):
        yield opened


def test_models(client: openai.OpenAI) -> None:
    assert [(model.id, model.owned_by) for model in client.models.list()] == [("sim", "vllm")]


def test_chat_without_a_stream(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="sim", messages=HELLO, max_tokens=5, temperature=0.7, top_p=0.9, seed=3, stop=["\n"], user="somebody"
    )
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", " token" * 5)
    assert (choice.finish_reason, choice.logprobs) == ("length", None)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_with_a_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="sim", messages=HELLO, max_completion_tokens=6, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    *told, last = chunks
    assert len({chunk.id for chunk in chunks}) == 1
    assert told[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == " token" * 6
    assert [chunk.choices[0].finish_reason for chunk in told] == [None] * 6 + ["length"]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 6


def test_a_stream_without_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="sim", messages=HELLO, max_tokens=3, stream=True)
    assert [chunk.usage for chunk in stream] == [None] * 4


def test_a_stop_string_is_the_reason(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="sim", messages=HELLO, max_tokens=9, stop="token token")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (" ", "stop")


def test_several_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="sim", messages=HELLO, max_tokens=2, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


def test_logprobs(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="sim", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2)
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    assert [entry.token for entry in chat.choices[0].logprobs.content] == [" token"] * 3
    text = client.completions.create(model="sim", prompt="Hello", max_tokens=3, logprobs=1)
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.text_offset == [0, 6, 12]
    stream = client.completions.create(model="sim", prompt="Hello", max_tokens=3, logprobs=1, stream=True)
    offsets = [c.choices[0].logprobs.text_offset for c in stream if c.choices[0].logprobs is not None]
    assert offsets == [[0], [6], [12]]


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="sim", prompt=[1, 2, 3], max_tokens=4)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (" token" * 4, "length")
    stream = client.completions.create(model="sim", prompt="Hello", max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == " token" * 4
    batch = client.completions.create(model="sim", prompt=["one", "two"], max_tokens=2)
    assert [choice.index for choice in batch.choices] == [0, 1]


def test_a_stream_that_is_given_up(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model="sim", messages=HELLO, max_tokens=3000, stream=True) as stream:
        next(iter(stream))
    assert client.chat.completions.create(model="sim", messages=HELLO, max_tokens=1).choices


def test_errors_are_those_of_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist") as missing:
        client.chat.completions.create(model="other", messages=HELLO)
    assert (missing.value.param, missing.value.type) == ("model", "NotFoundError")
    with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens"):
        client.completions.create(model="sim", prompt=[1] * 4000, max_tokens=200)
    with pytest.raises(openai.BadRequestError, match="temperature must be non-negative"):
        client.chat.completions.create(model="sim", messages=HELLO, temperature=-1)
