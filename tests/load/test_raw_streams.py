"""Raw streams: what is written is read again, and what is missing is said."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workers.load.raw_streams import KeptRequest, StreamsReader, StreamsWriter, UnreadableStreams
from workers.load.recording import End, Read, Recording

TIMES = st.integers(0, 2**62)
READS = st.lists(st.builds(Read, st.none() | TIMES, TIMES, st.binary(max_size=60)), max_size=5)
RECORDINGS = st.builds(
    Recording,
    send_ns=TIMES,
    sent_ns=st.none() | TIMES,
    end_ns=TIMES,
    offset_before_ns=TIMES,
    offset_after_ns=TIMES,
    reads=READS,
    end=st.sampled_from(End),
)
KEPT = st.builds(
    KeptRequest,
    level=st.sampled_from(["warm_up", "c1", "c48r2"]),
    index=st.integers(0, 10**6),
    start_ns=TIMES,
    recording=RECORDINGS,
    user_lag_ms=st.floats(0, 1e6),
    due_s=st.none() | st.floats(0, 1e6),
    asked=st.none() | st.integers(1, 10**6),
)


def kept(index: int = 0, data: bytes = b"abc") -> KeptRequest:
    reads = [Read(5, 7, data)]
    return KeptRequest("c1", index, 3, Recording(send_ns=4, end_ns=9, reads=reads, end=End.COMPLETE))


def write(path: Path, *requests: KeptRequest, max_bytes: int = 1_000_000) -> None:
    with StreamsWriter(path, max_bytes) as writer:
        for request in requests:
            writer.add(request)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(KEPT, max_size=4))
def test_what_is_written_is_read_again(tmp_path: Path, requests: list[KeptRequest]) -> None:
    path = tmp_path / "streams.gz"
    write(path, *requests)
    reader = StreamsReader(path)
    assert list(reader.requests()) == requests
    assert (reader.left_out, reader.whole) == (0, True)


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    write(tmp_path / "streams.gz", kept())
    assert (tmp_path / "streams.gz").stat().st_mode & 0o777 == 0o600


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "streams.gz"
    write(path, *(kept(index) for index in range(5)), max_bytes=0)
    reader = StreamsReader(path)
    assert list(reader.requests()) == []
    assert (reader.left_out, reader.whole) == (5, True)


def test_where_nothing_can_be_written_nothing_fails(tmp_path: Path) -> None:
    write(tmp_path / "no such folder" / "streams.gz", kept())
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_writer_was_killed_gives_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "streams.gz"
    write(path, *(kept(index) for index in range(3)))
    with gzip.open(path) as file:
        plain = file.read()
    with gzip.open(path, "wb") as file:
        file.write(plain[: plain.rindex(b"R") + 40])
    reader = StreamsReader(path)
    assert [request.index for request in reader.requests()] == [0, 1]
    assert not reader.whole
    path.write_bytes(path.read_bytes()[:-12])
    assert [request.index for request in StreamsReader(path).requests()] == [0, 1]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (gzip.compress(b"something else"), "holds no streams"),
        (gzip.compress(b"ATLS\x09"), "has version 9"),
        (gzip.compress(b"ATLS\x01R\x02\x00\x00\x00{}"), "is damaged"),
        (gzip.compress(b"ATLS\x01R\x02\x00\x00\x00}{"), "is damaged"),
        (b"not compressed at all", "is damaged"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "streams.gz"
    path.write_bytes(data)
    with pytest.raises(UnreadableStreams, match=why):
        list(StreamsReader(path).requests())
