"""The reads of every request, kept so that its figures can be computed again under other definitions.

One gzip file, `streams.gz` (or `streams.<n>.gz` of each of several processes). Inside: the bytes `ATLS` and a version,
then records of a kind (one byte), the length of a JSON object (u32) and that object. All numbers are little-endian.
Kind `R`, a request: behind its object follow, for its `reads`, the kernel's times, our times (i64 each, as differences
to the one before, from 0), the lengths (u32), and all their bytes. Kind `E`, the end: `left_out` requests did not fit.
Bodies of requests are never kept. Answers are, and those to a user's own prompts may be private: `keep_streams: false`
of a workload keeps nothing.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from autotune.domain.measurement import RequestSample
from workers.load.recording import End, Read, Recording
from workers.load.stream import sample

STREAMS_FILE = "streams.gz"
PATTERN = "streams*.gz"
MAX_FILE_BYTES = 64 * 1024**2  # about two million events: 320 bytes each come down to some 25
_MAGIC = b"ATLS"
_VERSION = 1
_LEVEL = 4  # of zlib: a tenth larger than its default, in half the time
_NO_TIME = -1  # a read without a time of the kernel


class UnreadableStreams(ValueError):
    """The file is none of ours, or of a version that this program does not know."""


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """One exchange with what its figures need beside its reads; see `workers.load.stream.sample`."""

    level: str
    index: int
    start_ns: int
    recording: Recording
    user_lag_ms: float = 0.0
    due_s: float | None = None
    asked: int | None = None

    def sample(self) -> RequestSample:
        """Its figures by the present definitions."""
        return sample(self.recording, self.index, self.start_ns, self.user_lag_ms, self.due_s, self.asked)


class StreamsWriter:
    """Writes while no request is open: compression takes time. Use as a context manager.

    As soon as the file has `max_bytes`, or the disk is full, further requests are counted and left out: a measurement
    never fails for its streams.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._left_out = 0
        self._raw: BinaryIO | None = None
        self._file: gzip.GzipFile | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self._raw = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
            self._file = gzip.GzipFile("", "wb", _LEVEL, self._raw, mtime=0)
            self._file.write(_MAGIC + bytes([_VERSION]))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._write(_record(b"E", {"left_out": self._left_out}))
        for file in (self._file, self._raw):
            with contextlib.suppress(OSError):
                if file is not None:
                    file.close()

    def add(self, kept: KeptRequest) -> None:
        """One request that has ended."""
        full = self._raw is None or self._raw.tell() >= self._max_bytes
        if self._left_out or full:
            self._left_out += 1
            return
        recording = kept.recording
        reads = recording.reads
        facts = {
            "level": kept.level,
            "index": kept.index,
            "start_ns": kept.start_ns,
            "user_lag_ms": kept.user_lag_ms,
            "due_s": kept.due_s,
            "asked": kept.asked,
            "send_ns": recording.send_ns,
            "sent_ns": recording.sent_ns,
            "end_ns": recording.end_ns,
            "offset_before_ns": recording.offset_before_ns,
            "offset_after_ns": recording.offset_after_ns,
            "end": recording.end.value,
            "reads": len(reads),
        }
        kernel = _differences([_NO_TIME if read.kernel_ns is None else read.kernel_ns for read in reads])
        user = _differences([read.user_ns for read in reads])
        count = len(reads)
        numbers = struct.pack(f"<{2 * count}q{count}I", *kernel, *user, *(len(read.data) for read in reads))
        try:
            self._write(_record(b"R", facts) + numbers + b"".join(read.data for read in reads))
        except OSError:
            self._left_out += 1

    def _write(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)


class StreamsReader:
    """One such file. `requests` gives what is there; afterwards `left_out` and `whole` say what is not.

    `left_out`: requests that did not fit. `whole`: the file has its end; it has none where its process was killed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.left_out = 0
        self.whole = False

    def requests(self) -> Iterator[KeptRequest]:
        """Raises UnreadableStreams, and OSError where the file can't be opened."""
        with gzip.open(self._path, "rb") as file:
            try:
                head = file.read(len(_MAGIC) + 1)
                if head[: len(_MAGIC)] != _MAGIC:
                    raise UnreadableStreams(f"{self._path} holds no streams")
                if head[-1] != _VERSION:
                    raise UnreadableStreams(f"{self._path} has version {head[-1]}, this program reads {_VERSION}")
                while kind := file.read(1):
                    (length,) = struct.unpack("<I", _exactly(file, 4))
                    facts = json.loads(_exactly(file, length))
                    if kind == b"R":
                        yield _request(facts, file)
                    elif kind == b"E":
                        self.left_out = facts["left_out"]
                        self.whole = True
            except EOFError:
                return
            except UnreadableStreams:
                raise
            except (gzip.BadGzipFile, zlib.error, struct.error, KeyError, TypeError, ValueError) as error:
                raise UnreadableStreams(f"{self._path} is damaged: {error}") from error


def _record(kind: bytes, facts: dict[str, Any]) -> bytes:
    text = json.dumps(facts, separators=(",", ":")).encode()
    return kind + struct.pack("<I", len(text)) + text


def _request(facts: dict[str, Any], file: gzip.GzipFile) -> KeptRequest:
    count = facts["reads"]
    numbers = struct.unpack(f"<{2 * count}q{count}I", _exactly(file, 20 * count))
    kernel = list(itertools.accumulate(numbers[:count]))
    user = list(itertools.accumulate(numbers[count : 2 * count]))
    reads = [
        Read(None if at == _NO_TIME else at, ours, _exactly(file, length))
        for at, ours, length in zip(kernel, user, numbers[2 * count :], strict=True)
    ]
    recording = Recording(
        send_ns=facts["send_ns"],
        sent_ns=facts["sent_ns"],
        end_ns=facts["end_ns"],
        offset_before_ns=facts["offset_before_ns"],
        offset_after_ns=facts["offset_after_ns"],
        reads=reads,
        end=End(facts["end"]),
    )
    return KeptRequest(
        level=facts["level"],
        index=facts["index"],
        start_ns=facts["start_ns"],
        recording=recording,
        user_lag_ms=facts["user_lag_ms"],
        due_s=facts["due_s"],
        asked=facts["asked"],
    )


def _differences(values: Sequence[int]) -> list[int]:
    return [value - before for before, value in itertools.pairwise([0, *values])]


def _exactly(file: gzip.GzipFile, length: int) -> bytes:
    data = file.read(length)
    if len(data) < length:
        raise EOFError
    return data
