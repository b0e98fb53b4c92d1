"""From recorded reads to figures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.load.recordings import DONE, HEAD, LAST, MS, chunk, event, recording, stream_of, text, usage
from workers.load.answer import Answer, events, read_answer
from workers.load.recording import End, realtime_offset_ns
from workers.load.stream import sample

TAIL = event(text("", "length")) + event(usage(4)) + DONE
FOUR = stream_of(
    (5, event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})),
    (20, event(text("a"))),
    (30, event(text("b"))),
    (40, event(text("c"))),
    (53, event(text("d"))),
    (54, TAIL),
)


def test_the_definitions() -> None:
    found = sample(recording(*FOUR, (54, LAST), late_ms=0.5), 3, 500 * MS)
    assert found.index == 3
    assert found.t_send_s == pytest.approx(0.5)
    assert found.t_last_s == pytest.approx(0.553)
    assert found.ttft_ms == pytest.approx(20)  # not 5: a role is no token
    assert found.tpot_ms == pytest.approx(33 / 3)
    assert found.e2e_ms == pytest.approx(53)  # not 54: usage and [DONE] are no tokens
    assert (found.prompt_tokens, found.completion_tokens, found.finish_reason) == (7, 4, "length")
    assert (found.events, found.stamp, found.coalesced, found.error) == (4, "kernel", False, None)
    assert found.client_lag_ms == pytest.approx(0.5)


def test_several_tokens_an_event_count_as_the_server_counts_them() -> None:
    reads = stream_of((20, event(text("a b"))), (40, event(text("c d"))), (41, event(text("", "length"))))
    found = sample(recording(*reads, (42, chunk(event(usage(4)) + DONE) + LAST)), 0, 0)
    assert found.tpot_ms == pytest.approx(20 / 3)


def test_user_times_where_the_kernel_gives_none() -> None:
    found = sample(recording(*FOUR, (54, LAST), kernel=False, late_ms=2), 0, 0, user_lag_ms=2.5)
    assert found.stamp == "user"
    assert found.ttft_ms == pytest.approx(22)
    assert found.client_lag_ms == 2.5


def test_user_times_where_the_clock_was_set_meanwhile() -> None:
    made = recording(*FOUR, (54, LAST))
    made.offset_after_ns += MS
    assert sample(made, 0, 0).stamp == "user"


def test_a_kernel_time_is_never_after_our_own() -> None:
    made = recording(*FOUR, (54, LAST), late_ms=-1)
    assert made.arrivals_ns() == [read.user_ns for read in made.reads]
    assert sample(made, 0, 0).client_lag_ms == 0


def test_first_events_in_one_read() -> None:
    """A late first read hides when the first token came; the pace after it is still right."""
    words = [event(text(str(number))) for number in range(11)]
    reads = stream_of((40, b"".join(words[:3])), *((40 + 10 * n, words[2 + n]) for n in range(1, 9)))
    tail = chunk(event(text("", "length")) + event(usage(11)) + DONE) + LAST
    found = sample(recording(*reads, (121, tail)), 0, 0)
    assert found.coalesced
    assert found.ttft_ms == pytest.approx(40)
    assert found.tpot_ms == pytest.approx(10)
    assert found.e2e_ms == pytest.approx(120)


def test_a_stream_that_comes_at_once_has_no_pace() -> None:
    whole = b"".join(event(text(word)) for word in "abcd") + TAIL
    found = sample(recording((50, HEAD + chunk(whole) + LAST)), 0, 0)
    assert found.error is None
    assert (found.events, found.coalesced) == (4, True)
    assert found.tpot_ms is None
    most = stream_of((50, b"".join(event(text(word)) for word in "abc")), (60, event(text("d")) + TAIL))
    assert sample(recording(*most, (60, LAST)), 0, 0).tpot_ms is None


def test_no_usage_no_token_count() -> None:
    reads = stream_of((20, event(text("a"))), (30, event(text("b"))), (31, event(text("", "length")) + DONE))
    found = sample(recording(*reads, (31, LAST)), 0, 0)
    assert found.error is None
    assert (found.completion_tokens, found.tpot_ms) == (None, None)
    assert found.ttft_ms == pytest.approx(20)


def test_one_token_has_no_pace() -> None:
    reads = stream_of((20, event(text("a", "length")) + event(usage(1)) + DONE))
    assert sample(recording(*reads, (21, LAST)), 0, 0).tpot_ms is None


def test_no_text_no_times() -> None:
    reads = stream_of((20, TAIL))
    found = sample(recording(*reads, (21, LAST)), 0, 0)
    assert found.error is None
    assert (found.ttft_ms, found.tpot_ms, found.e2e_ms) == (None, None, None)


@pytest.mark.parametrize("channel", ["content", "reasoning_content", "reasoning"])
def test_every_channel_counts(channel: str) -> None:
    first = {"choices": [{"delta": {channel: "hm", "role": "assistant"}}]}
    reads = stream_of((20, event(first)), (30, event(text("b")) + TAIL))
    found = sample(recording(*reads, (31, LAST)), 0, 0)
    assert found.ttft_ms == pytest.approx(20)
    assert found.events == 2


def test_one_json_document_instead_of_a_stream() -> None:
    body = json.dumps({**text("a b c d", "length"), "usage": usage(4)["usage"]}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    found = sample(recording((10, head), (50, body)), 0, 0)
    assert (found.error, found.events, found.completion_tokens, found.tpot_ms) == (None, 1, 4, None)
    assert found.ttft_ms == found.e2e_ms == pytest.approx(50)


FAILURES: list[tuple[str, list[bytes], End]] = [
    ("connect", [], End.CONNECT),
    ("timeout", [HEAD, chunk(event(text("a")))], End.TIMEOUT),
    ("reset", [HEAD, chunk(event(text("a")))], End.RESET),
    ("cancelled", [HEAD], End.OPEN),
    ("truncated_stream", [HEAD, chunk(event(text("a")))], End.CUT),
    ("truncated_stream", [HEAD, chunk(event(text("a")) + event(usage(1))), LAST], End.COMPLETE),
    ("truncated_stream", [HEAD, chunk(event(text("a")) + DONE), LAST], End.COMPLETE),
    ("protocol", [b"HELLO\r\n\r\n"], End.PROTOCOL),
    ("protocol", [HEAD, chunk(b"data: {nonsense\n\n" + TAIL), LAST], End.COMPLETE),
    ("protocol", [HEAD, chunk(b"data: 5\n\n" + TAIL), LAST], End.COMPLETE),
    ("protocol", [HEAD, chunk(b'data: {"a": "\xff"}\n\n' + TAIL), LAST], End.COMPLETE),
    (
        "stream_error",
        [HEAD, chunk(event(text("a"))), chunk(event({"error": {"code": 500}}) + DONE), LAST],
        End.COMPLETE,
    ),
    ("stream_error", [HEAD, chunk(event({"error": {"code": 500}}))], End.RESET),
    ("stream_error", [HEAD, chunk(event({"object": "error", "message": "no"}) + DONE), LAST], End.COMPLETE),
    ("stream_error", [HEAD, chunk(b"event: error\ndata: died\n\n" + DONE), LAST], End.COMPLETE),
    ("stream_error", [HEAD, chunk(event(text("a", "abort")) + DONE), LAST], End.COMPLETE),
    ("stream_error", [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b'{"error": "no"}'], End.COMPLETE),
    ("http_503", [b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno"], End.COMPLETE),
    ("http_400", [b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\n"], End.RESET),
]


@pytest.mark.parametrize(("error", "reads", "end"), FAILURES)
def test_failed_requests_have_a_class_and_no_times(error: str, reads: list[bytes], end: End) -> None:
    found = sample(recording(*((10 * n, data) for n, data in enumerate(reads)), end=end), 0, 0)
    assert found.error == error
    assert (found.ttft_ms, found.tpot_ms, found.e2e_ms) == (None, None, None)
    assert found.t_last_s == 9.0


def test_event_syntax() -> None:
    body = b": hello\n\nevent: tick\r\ndata: a\r\ndata:b\r\nid: 4\r\n\r\ndata\n\ndata:  c\r\rdata: unterminated"
    assert [(found.name, found.data) for found in events(body)] == [
        (b"tick", b"a\nb"),
        (b"", b""),
        (b"", b" c"),
        (b"", b"unterminated"),
    ]


def test_a_huge_event() -> None:
    word = "x" * 300_000
    data = HEAD + chunk(event(text(word))) + chunk(TAIL) + LAST
    answer = read_answer([data[at : at + 1460] for at in range(0, len(data), 1460)])
    assert [content.text for content in answer.content] == [word]
    assert answer.done


def meaning(answer: Answer) -> tuple[Any, ...]:
    words = [content.text for content in answer.content]
    flags = (answer.done, answer.fault, answer.malformed)
    return words, flags, answer.status, answer.finish_reason, answer.prompt_tokens, answer.completion_tokens


@st.composite
def responses(draw: st.DrawFn) -> tuple[list[str], bytes]:
    words = draw(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=6))
    newline = draw(st.sampled_from([b"\n", b"\r\n"]))
    pieces: list[bytes] = []
    for word in words:
        if draw(st.booleans()):
            pieces.append(b": ping" + newline * 2)
        pieces.append(event(text(word), newline))
    pieces += [event(text("", "length"), newline), event(usage(len(words)), newline), b"data: [DONE]" + newline * 2]
    if draw(st.booleans()):
        return words, HEAD + b"".join(map(chunk, pieces)) + LAST
    body = b"".join(pieces)
    return words, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@settings(max_examples=100, deadline=None)
@given(responses(), st.data())
def test_no_split_into_reads_changes_what_was_said(response: tuple[list[str], bytes], data: st.DataObject) -> None:
    words, whole = response
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=40)))
    reads = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    answer = read_answer(reads)
    assert meaning(answer) == meaning(read_answer([whole]))
    assert meaning(answer)[0] == words
    assert answer.done
    places = [content.read for content in answer.content]
    assert places == sorted(places)


@settings(max_examples=15, deadline=None)
@given(responses())
def test_an_event_counts_as_arrived_with_its_last_byte(response: tuple[list[str], bytes]) -> None:
    """Read byte by byte, the number of a read is the place of its byte."""
    words, whole = response
    answer = read_answer([bytes([byte]) for byte in whole])
    assert [content.text for content in answer.content] == words
    assert all(whole[: content.read + 1].endswith((b"\n\n", b"\r\n\r\n")) for content in answer.content)


def test_the_offset_of_the_clocks_holds_still() -> None:
    assert abs(realtime_offset_ns() - realtime_offset_ns()) < 50 * MS
