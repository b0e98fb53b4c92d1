"""What is sent: a user's own requests, conversations, texts of an exact length, groups of prefixes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from autotune.domain.workload import LoadLevel, Workload
from tests.load.mock_endpoint import MockEndpoint, Script
from tests.load.running import run, spec_of
from workers.load.exact_text import ExactText
from workers.load.process import LoadFailed
from workers.load.prompts import FOREIGN, PromptSource
from workers.load.refusal import BadRequestsFile, BadTrace, NoExactText
from workers.load.requests_file import OwnRequests
from workers.load.spec import LoadSpec


def of_file(tmp_path: Path, *lines: object, url: str = "http://h:1", level: tuple[int, int] = (1, 3)) -> LoadSpec:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    spec = spec_of(url, level, warm_up=1)
    workload = spec.workload.model_copy(update={"requests_file": str(path)})
    return spec.model_copy(update={"workload": workload, "api": "chat"})


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def own(spec: LoadSpec) -> OwnRequests:
    return OwnRequests(spec, Path(str(spec.workload.requests_file)))


def body(requests: OwnRequests, number: int, turn: int = 0, answers: tuple[str, ...] = ()) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(asyncio.run(requests.conversation("c1", number)).body(turn, answers))
    return made


def test_own_fields_stay_and_ours_are_added(tmp_path: Path) -> None:
    line = {
        "messages": [user("hello")],
        "tools": [{"type": "function"}],
        "max_tokens": 7,
        "model": "x",
        "stream": False,
    }
    requests = own(of_file(tmp_path, line, {"prompt": "go on"}))
    assert body(requests, 0) == {
        "messages": [user("hello")],
        "tools": [{"type": "function"}],
        "max_tokens": 7,
        "model": "mock",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    second = asyncio.run(requests.conversation("c1", 1))
    assert second.path == "/v1/completions"
    assert second.asked(0) == 20
    assert body(requests, 2) == body(requests, 0)  # from the beginning again
    requests.continuous = True
    assert body(requests, 0)["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_turns_follow_the_answers(tmp_path: Path) -> None:
    mine = {"role": "assistant", "content": "mine"}
    requests = own(of_file(tmp_path, {"turns": [[user("a")], [user("b")], [mine, user("c")]]}))
    assert requests.turns("c1", 0) == 3
    assert body(requests, 0)["messages"] == [user("a")]
    answer = {"role": "assistant", "content": "one"}
    assert body(requests, 0, 1, ("one",))["messages"] == [user("a"), answer, user("b")]
    assert body(requests, 0, 2, ("one", "two"))["messages"] == [user("a"), answer, user("b"), mine, user("c")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"messages": [user("a")], "api_key": "x"}, "line 1: api_key: not sent; allowed: chat_template_kwargs"),
        ({"max_tokens": 4}, "must have one of messages, turns, prompt"),
        ({"messages": []}, "messages: must be a list of messages"),
        ({"turns": [[]]}, "turns: must be a list of lists of messages"),
        ({"prompt": ""}, "prompt: must be text"),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens: must be a whole number"),
        ([], "must be an object"),
    ],
    ids=str,
)
def test_requests_that_make_no_sense(tmp_path: Path, line: object, words: str) -> None:
    with pytest.raises(BadRequestsFile, match=words):
        own(of_file(tmp_path, line))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadRequestsFile, match="has no lines"):
        own(of_file(tmp_path))
    (tmp_path / "requests.jsonl").write_bytes(b"\xff")
    with pytest.raises(BadRequestsFile, match="can't be read"):
        OwnRequests(spec_of("http://h:1", (1, 1)), tmp_path / "requests.jsonl")


def test_a_conversation_is_sent_in_order_on_one_stream(tmp_path: Path) -> None:
    lines = [{"turns": [[user(f"{name}{turn}")] for turn in range(3)], "max_tokens": 4} for name in "xy"]
    with MockEndpoint(Script(channel="content", word="so ")) as endpoint:
        spec = of_file(tmp_path, *lines, url=endpoint.url, level=(2, 6))
        samples = run(spec, tmp_path).levels["c2"]
    assert [sample.index for sample in samples] == list(range(6))
    assert {sample.error for sample in samples} == {None}
    sent = [one.body["messages"] for one in endpoint.served[1:]]
    for name in "xy":
        (last,) = (messages for messages in sent if messages[-1]["content"] == f"{name}2")
        texts = [message["content"] for message in last]
        assert texts == [f"{name}0", "so so so so ", f"{name}1", "so so so so ", f"{name}2"]
    for first in (0, 3):
        one, two, three = samples[first : first + 3]
        assert one.t_last_s <= two.t_send_s <= two.t_last_s <= three.t_send_s


def test_a_file_that_is_wrong_ends_the_load(tmp_path: Path) -> None:
    with pytest.raises(LoadFailed, match=r"code 3: BadRequestsFile.*line 1: must have one of"):
        run(of_file(tmp_path, {}), tmp_path)


# --- groups, lengths ---------------------------------------------------------------------------


def grouped(groups: int = 3, **more: object) -> LoadSpec:
    workload = Workload.model_validate(
        {
            "prompt_tokens": 32,
            "shared_prefix_tokens": 24,
            "prefix_groups": groups,
            "output_tokens": 5,
            "levels": [{"concurrency": 1, "requests": 9}],
            **more,
        }
    )
    return LoadSpec(base_url="http://h:1", model="m", workload=workload, seed=1)


def test_prefixes_come_in_turn_and_are_all_primed() -> None:
    source = PromptSource(grouped())
    prefixes = [tuple(source.prompt("c1", index)[:24]) for index in range(9)]
    assert len(set(prefixes)) == 3
    assert prefixes[:3] * 3 == prefixes
    primed = [json.loads(body)["prompt"] for _, body in source.primings()]
    assert primed == [list(prefix) for prefix in prefixes[:3]]
    assert prefixes[0] == tuple(PromptSource(grouped(1)).prompt("c1", 0)[:24])


def test_foreign_prompts_share_nothing() -> None:
    source = PromptSource(grouped())
    assert source.prompt(f"{FOREIGN}c1", 0)[:24] != source.prompt("c1", 0)[:24]


def test_min_tokens_in_place_of_ignore_eos() -> None:
    told = json.loads(next(PromptSource(grouped(length_control="min_tokens")).bodies("c1", 1)))
    assert (told["min_tokens"], told["max_tokens"], told.get("ignore_eos")) == (5, 5, None)


def test_a_trace_that_asks_for_more_than_the_workload(tmp_path: Path) -> None:
    for entry, words in (({"prompt_tokens": 33}, "raise these"), ({"prompt_tokens": 24}, "lower shared_prefix_tokens")):
        path = tmp_path / f"{entry['prompt_tokens']}.jsonl"
        path.write_text(json.dumps({"at_s": 0, **entry}))
        with pytest.raises(BadTrace, match=words):
            PromptSource(grouped(levels=[{"concurrency": 1, "trace_file": str(path)}]))


# --- texts of an exact length ------------------------------------------------------------------


async def exact(numbers: list[int], tokens: int, per_word: int, overhead: int) -> tuple[str, int]:
    """The text, and how often the server was asked; its tokenizer has so many tokens a word, and a template."""
    asked = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        words = json.loads(request.content)["messages"][0]["content"].split()
        return httpx.Response(200, json={"count": overhead + sum(1 if word == "a" else per_word for word in words)})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        return await ExactText(client, "http://h", "m").of(numbers, tokens), asked


@pytest.mark.parametrize("per_word", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [16, 100, 1024])
def test_texts_have_exactly_the_tokens_that_are_asked_for(per_word: int, tokens: int) -> None:
    text, asked = asyncio.run(exact(list(range(100, 100 + tokens)), tokens, per_word, 9))
    words = text.split()
    assert 9 + sum(1 if word == "a" else per_word for word in words) == tokens
    assert sum(word == "a" for word in words) < 9 + per_word
    assert asked <= 8


def test_no_text_is_shorter_than_its_template() -> None:
    with pytest.raises(NoExactText, match="no text of exactly 5 tokens; raise prompt_tokens"):
        asyncio.run(exact([1, 2, 3], 5, 1, 9))


def test_a_server_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with MockEndpoint(controls={"/tokenize": [404]}) as endpoint:
        spec = spec_of(endpoint.url, LoadLevel(concurrency=1, requests=1))
        workload = spec.workload.model_copy(update={"exact_text": True})
        with pytest.raises(LoadFailed, match=r"NoExactText: .*/tokenize answers 404: exact_text needs a server"):
            run(spec.model_copy(update={"workload": workload, "api": "chat"}), tmp_path)
    assert endpoint.served == []
