"""From the times of single events to figures, and what answers may not say."""

from __future__ import annotations

import pytest

from autotune.domain.measurement import TokenCount
from tests.load.recordings import DONE, HEAD, LAST, MS, OFFSET, chunk, event, recording, stream_of, text, usage
from workers.load.answer import events
from workers.load.recording import Read, Recording
from workers.load.stream import sample


def words(count: int, *, told: bool = False, step_ms: float = 10, tokens: int = 1) -> list[tuple[float, bytes]]:
    """So many events, one in each read; `told`: with the tokens so far."""
    messages = [
        {**text("wort " * tokens), **({"usage": {"completion_tokens": tokens * (n + 1)}} if told else {})}
        for n in range(count)
    ]
    return [(20 + step_ms * n, event(message)) for n, message in enumerate(messages)]


def ended(pieces: list[tuple[float, bytes]], tokens: int, reason: str = "length") -> Recording:
    at = pieces[-1][0] + 1
    tail = event(text("", reason)) + event(usage(tokens)) + DONE
    return recording(*stream_of(*pieces), (at, chunk(tail) + LAST))


@pytest.mark.parametrize(("told", "counted_by"), [(True, TokenCount.USAGE), (False, TokenCount.EVEN)])
def test_the_pace_behind_the_first_event(told: bool, counted_by: TokenCount) -> None:
    """Over N - 1 a first event with four tokens makes the pace look better; behind it, it is exact."""
    found = sample(ended(words(8, told=told, tokens=4, step_ms=20), 32), 0, 0)
    assert found.counted_by is counted_by
    assert found.decode_tpot_ms == pytest.approx(5)
    assert found.tpot_ms == pytest.approx(140 / 31)
    assert found.gap_tokens == pytest.approx([4] * 7)
    assert found.gaps_ms == pytest.approx([20] * 7)


def test_a_merged_first_read_bounds_the_first_token_and_moves_the_anchor() -> None:
    pieces = words(10)
    late = [(40.0, pieces[0][1] + pieces[1][1] + pieces[2][1]), *pieces[3:]]
    made = ended(late, 10)
    made.reads.insert(0, Read(OFFSET + 1003 * MS, 1003 * MS, HEAD))
    made.reads[1] = made.reads[1]._replace(data=made.reads[1].data.removeprefix(HEAD))
    found = sample(made, 0, 0)
    assert found.coalesced
    assert found.ttft_low_ms == pytest.approx(3)
    assert found.ttft_ms == pytest.approx(40)
    assert found.decode_tpot_ms == pytest.approx(10)
    assert found.gaps_ms == pytest.approx([10] * 7)  # the events of the merged read have no times of their own


def test_an_event_with_the_beginning_of_the_next_behind_it_has_no_time_of_its_own() -> None:
    """The kernel's time is that of the last segment of a read: here that of the next event's first bytes."""
    pieces = words(6)
    (at, first), (later, second) = pieces[0], pieces[1]
    found = sample(ended([(at + 8, first + second[:9]), (later, second[9:]), *pieces[2:]], 6), 0, 0)
    assert found.coalesced
    assert found.ttft_low_ms == 0
    assert found.gaps_ms == pytest.approx([10] * 4)
    assert found.decode_tpot_ms == pytest.approx(10)


def test_no_gap_where_an_event_brought_no_token() -> None:
    pieces = words(4, told=True)
    same = event({"choices": [{"delta": {"content": "x"}}], "usage": {"completion_tokens": 2}})
    found = sample(ended([*pieces[:2], (35, same), *pieces[2:]], 4), 0, 0)
    assert found.error == "usage_mismatch"  # five events of text can't be four tokens
    tool = event(
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{"}}]}}], "usage": {"completion_tokens": 2}}
    )
    found = sample(ended([*pieces[:2], (35, tool), *pieces[2:]], 4), 0, 0)
    assert (found.error, found.events) == (None, 5)
    assert found.gap_tokens == (1, 1, 1)


def test_the_first_answer_and_the_upload() -> None:
    reasoning = [(20.0 + 10 * n, event({"choices": [{"delta": {"reasoning": "hm"}}]})) for n in range(3)]
    answer = [(50.0, event({"choices": [{"delta": {"content": "so"}}]}))]
    made = ended(reasoning + answer, 4)
    made.sent_ns = made.send_ns + 7 * MS
    found = sample(made, 0, 0)
    assert (found.ttft_ms, found.ttfo_ms, found.upload_ms) == (20, 50, 7)


@pytest.mark.parametrize(
    ("tokens", "events_sent", "asked", "error"),
    [
        (4, 4, 4, None),
        (4, 4, 5, None),
        (4, 2, 4, None),
        (5, 4, 4, "too_many_tokens"),
        (3, 4, 4, "usage_mismatch"),
        (0, 4, 4, "usage_mismatch"),
        (-1, 4, 4, "usage_mismatch"),
    ],
)
def test_tokens_that_can_not_be(tokens: int, events_sent: int, asked: int, error: str | None) -> None:
    assert sample(ended(words(events_sent), tokens), 0, 0, asked=asked).error == error


def test_more_events_than_asked_tokens_where_no_usage_is_told() -> None:
    pieces = [*words(5), (80.0, event(text("", "length")) + DONE)]
    made = recording(*stream_of(*pieces), (80, LAST))
    assert sample(made, 0, 0, asked=4).error == "too_many_tokens"
    assert sample(made, 0, 0, asked=5).error is None


def test_running_counts_that_go_down_are_a_contradiction() -> None:
    first, second, *rest = words(4, told=True)
    assert sample(ended([first, (25, second[1]), (30, first[1]), *rest], 5), 0, 0).error == "usage_mismatch"


def test_text_of_a_choice_that_nobody_asked_for() -> None:
    other = event({"choices": [{"index": 1, "text": "b"}]})
    assert sample(ended([*words(2), (40, other)], 3), 0, 0).error == "more_choices"
    empty = event({"choices": [{"index": 1, "text": ""}]})
    assert sample(ended([*words(2), (40, empty)], 2), 0, 0).error is None


def test_an_abort_is_one_even_when_another_reason_follows() -> None:
    assert sample(ended([*words(2), (40, event(text("", "abort")))], 2), 0, 0).error == "stream_error"


@pytest.mark.parametrize(("coding", "error"), [("gzip", "encoded"), ("identity", None)])
def test_compressed_answers_are_refused(coding: str, error: str | None) -> None:
    made = ended(words(2), 2)
    head = HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: %s\r\n\r\n" % coding.encode())
    made.reads[0] = made.reads[0]._replace(data=made.reads[0].data.replace(HEAD, head))
    assert sample(made, 0, 0).error == error


def test_lines_end_at_cr_and_lf_alone_and_a_mark_in_front_is_none() -> None:
    """Python's text has eight further ends of line, its bytes have none of them."""
    odd = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    body = b"\xef\xbb\xbfdata: " + f"a{odd}b".encode() + b"\n\ndata: c\n\n"
    assert [found.data.decode() for found in events(body)] == [f"a{odd}b", "c"]


def test_content_in_parts() -> None:
    parts = {"choices": [{"delta": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}]}
    found = sample(ended([(20, event(parts))], 1), 0, 0)
    assert (found.error, found.ttft_ms, found.events) == (None, 20, 1)
