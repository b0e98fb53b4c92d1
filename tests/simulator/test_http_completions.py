"""The bodies of the simulated server as a plain HTTP client sees them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.simulator.server_process import PLAIN, body, counter, events, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tmp_path_factory.mktemp("plain") / "log", *PLAIN) as (client, _):
        yield client


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}


def test_a_stream_yields_every_token_and_the_usage(plain: httpx.Client) -> None:
    found = [event for _, event in events(plain, COMPLETIONS, body(20, 12))]
    tokens, last = found[:-1], found[-1]
    assert [e["choices"][0]["text"] for e in tokens] == [" token"] * 12
    assert [e["choices"][0]["finish_reason"] for e in tokens] == [None] * 11 + ["length"]
    assert last["choices"] == []
    assert last["usage"] == usage(20, 12)


def test_usage_can_come_with_every_event(plain: httpx.Client) -> None:
    request = body(20, 4, options={"continuous_usage_stats": True})
    found = [event for _, event in events(plain, COMPLETIONS, request)]
    assert [e["usage"]["completion_tokens"] for e in found] == [1, 2, 3, 4, 4]


def test_chat_streams_a_role_before_the_tokens(plain: httpx.Client) -> None:
    found = [event for _, event in events(plain, CHAT, {**HELLO, "max_tokens": 3})]
    deltas = [e["choices"][0]["delta"] for e in found[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, *[{"content": " token"}] * 3]
    assert {e["object"] for e in found} == {"chat.completion.chunk"}


def test_answers_without_a_stream(plain: httpx.Client) -> None:
    whole = plain.post(COMPLETIONS, json={**body(8, 5), "prompt": "four characters a token"}).json()
    assert whole["choices"][0]["text"] == " token" * 5
    assert whole["usage"] == usage(6, 5)
    chat = plain.post(CHAT, json={**HELLO, "max_completion_tokens": 2}).json()
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": " token token"}
    assert chat["choices"][0]["finish_reason"] == "length"


def test_several_choices_and_prompts_are_answered_in_order(plain: httpx.Client) -> None:
    request = {"prompt": [[1, 2, 3], [4, 5]], "n": 2, "max_tokens": 3}
    whole = plain.post(COMPLETIONS, json=request).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert whole["usage"] == usage(5, 12)
    streamed = [event for _, event in events(plain, CHAT, {**HELLO, "n": 2, "max_tokens": 2})]
    for index in (0, 1):
        own = [c for e in streamed for c in e["choices"] if c["index"] == index]
        assert [c["delta"]["content"] for c in own] == ["", " token", " token"]
        assert own[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("stop", "more", "text", "tokens"),
    [
        ("token", {}, " ", 1),
        (["nothing", "n t"], {}, " toke", 2),
        ("n t", {"include_stop_str_in_output": True}, " token t", 2),
    ],
)
def test_a_stop_string_ends_the_text(
    plain: httpx.Client, stop: Any, more: dict[str, Any], text: str, tokens: int
) -> None:
    request = {**body(8, 9), "stop": stop, **more}
    (choice,) = plain.post(COMPLETIONS, json=request).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text, "stop")
    assert choice["stop_reason"] in ([stop] if isinstance(stop, str) else stop)
    found = [event for _, event in events(plain, COMPLETIONS, request)]
    assert "".join(e["choices"][0]["text"] for e in found[:-1]) == text
    assert found[-2]["choices"][0]["finish_reason"] == "stop"
    assert found[-1]["usage"]["completion_tokens"] == tokens


def test_a_stop_string_that_never_comes_changes_nothing(plain: httpx.Client) -> None:
    (choice,) = plain.post(COMPLETIONS, json={**body(8, 4), "stop": ["\n", ""]}).json()["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (" token" * 4, "length", None)


def test_usage_tells_of_cached_tokens_and_a_reset_forgets_them(plain: httpx.Client) -> None:
    request = {**body(1, 2), "prompt": [7] * 600}
    cached = []
    queries, hits = counter(plain, "prefix_cache_queries_total"), counter(plain, "prefix_cache_hits_total")
    for _ in range(2):
        cached.append(plain.post(COMPLETIONS, json=request).json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert plain.post("/reset_prefix_cache").status_code == 200
    cached.append(plain.post(COMPLETIONS, json=request).json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert 500 <= cached[1] < 600
    assert counter(plain, "prefix_cache_hits_total") - hits == cached[1]
    assert counter(plain, "prefix_cache_queries_total") - queries == 3 * 600


def test_a_text_finds_its_own_beginning_in_the_cache(plain: httpx.Client) -> None:
    shared = "".join(f"{number:4}" for number in range(600))
    plain.post(COMPLETIONS, json={"prompt": shared + "one", "max_tokens": 1})
    second = plain.post(COMPLETIONS, json={"prompt": shared + "two", "max_tokens": 1}).json()
    assert second["usage"]["prompt_tokens"] == 601
    assert 500 <= second["usage"]["prompt_tokens_details"]["cached_tokens"] <= 600


def test_tokens_are_counted_as_requests_are(plain: httpx.Client) -> None:
    told = plain.post("/tokenize", json={"model": "sim", "prompt": "four characters a token"}).json()
    assert (told["count"], len(told["tokens"]), told["max_model_len"]) == (6, 6, 4096)
    chat = plain.post("/tokenize", json={"messages": HELLO["messages"]}).json()
    asked = plain.post(CHAT, json={**HELLO, "max_tokens": 1}).json()
    assert chat["count"] == asked["usage"]["prompt_tokens"]
    assert plain.post("/tokenize", json={}).status_code == 400


@pytest.mark.parametrize(
    ("path", "request_body", "status", "fragment"),
    [
        (COMPLETIONS, {"model": "other", "prompt": [1], "max_tokens": 1}, 404, "The model `other` does not exist."),
        (COMPLETIONS, {"prompt": [1] * 4000, "max_tokens": 200}, 400, "maximum context length is 4096"),
        (COMPLETIONS, {"prompt": [], "max_tokens": 1}, 400, "prompt"),
        (COMPLETIONS, {"prompt": [[1], []], "max_tokens": 1}, 400, "prompt"),
        (COMPLETIONS, {"prompt": [1], "max_tokens": 0}, 400, "greater than or equal to 1"),
        (COMPLETIONS, {"prompt": [-1], "max_tokens": 1}, 400, "greater than or equal to 0"),
        (COMPLETIONS, {"prompt": [2**70], "max_tokens": 1}, 400, "prompt"),
        (COMPLETIONS, {"max_tokens": 1}, 400, "Field required"),
        (COMPLETIONS, {"prompt": [1], "temperature": -1}, 400, "temperature must be non-negative, got -1.0."),
        (COMPLETIONS, {"prompt": [1], "top_p": 0}, 400, "top_p must be in (0, 1], got 0.0."),
        (COMPLETIONS, {"prompt": [1], "n": 2, "temperature": 0}, 400, "n must be 1 when using greedy sampling, got 2."),
        (COMPLETIONS, {"prompt": [1], "logprobs": 21}, 400, "greater than max allowed: 20"),
        (COMPLETIONS, {"prompt": [1], "stream_options": {}}, 400, "Stream options can only be defined when"),
        (CHAT, {"messages": []}, 400, "at least 1 item"),
        (CHAT, {**HELLO, "top_logprobs": 2}, 400, "when using `top_logprobs`, `logprobs` must be set to true."),
    ],
)
def test_wrong_requests_are_refused(
    plain: httpx.Client, path: str, request_body: dict[str, Any], status: int, fragment: str
) -> None:
    response = plain.post(path, json=request_body)
    assert response.status_code == status
    error = response.json()["error"]
    assert fragment in error["message"]
    assert error["code"] == status
    assert error["type"] == {400: "BadRequestError", 404: "NotFoundError"}[status]


def test_a_body_that_is_no_json_is_refused(plain: httpx.Client) -> None:
    json_type = {"content-type": "application/json"}
    assert "JSON" in plain.post(COMPLETIONS, content=b"{", headers=json_type).json()["error"]["message"]
    assert plain.post(COMPLETIONS, content=b"\xff", headers=json_type).status_code == 400
    refused = plain.post(COMPLETIONS, content=b"{}")
    assert refused.status_code == 400
    assert "Only 'application/json' is allowed" in refused.json()["error"]["message"]
