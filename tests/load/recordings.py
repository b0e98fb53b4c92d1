"""Recordings made by hand."""

from __future__ import annotations

import json
from typing import Any

from workers.load.recording import End, Read, Recording

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MS = 1_000_000
OFFSET = 1_700_000_000_000_000_000


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(message: Any, newline: bytes = b"\n") -> bytes:
    return b"data: " + json.dumps(message, ensure_ascii=False).encode() + newline * 2


def text(word: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": word, "finish_reason": reason}]}


def usage(tokens: int, prompt: int = 7) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": tokens}}


DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"


def recording(
    *reads: tuple[float, bytes], end: End = End.COMPLETE, late_ms: float = 0, kernel: bool = True
) -> Recording:
    """Reads as (ms after the send, bytes); we come `late_ms` after the kernel."""
    return Recording(
        send_ns=1000 * MS,
        end_ns=9000 * MS,
        offset_before_ns=OFFSET,
        offset_after_ns=OFFSET,
        reads=[
            Read(
                OFFSET + int((1000 + at) * MS) if kernel else None,
                int((1000 + at + late_ms) * MS),
                data,
            )
            for at, data in reads
        ],
        end=end,
    )


def stream_of(*pieces: tuple[float, bytes]) -> list[tuple[float, bytes]]:
    """Chunked reads with the head in the first one."""
    return [(at, (HEAD if number == 0 else b"") + chunk(data)) for number, (at, data) in enumerate(pieces)]
