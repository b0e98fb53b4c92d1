"""A stream that somebody reported, as a small file of data: what is sent when, and what is right.

Keys: `source` (repository and number), `about`, `steps`, `expect` (fields of a `RequestSample`), and optionally `head`
(HTTP head, verbatim; its body is then sent unchunked unless the head says so), `newline: crlf`, `split` (the bytes of
the answer in pieces of this size), `end` (`cut`, `reset`), `asked` (tokens), `late_ms` (how late the reader is).

A step: `at` (ms after the request, else as the one before), `merge` (in one read with the one before), and a message
made of `delta` or `text`, `finish`, `usage` (completion tokens, or the whole object), or else `json`, `raw`, `done`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.load.mock_endpoint import CHUNKED, Script
from workers.load.recording import End, Read, Recording

FOLDER = Path(__file__).parent / "reports"
MS = 1_000_000
OFFSET = 1_700_000_000_000_000_000
SEND = 1_000 * MS


@dataclass(frozen=True)
class ReportedStream:
    """See above. `set_aside`: written when the reader was done."""

    name: str
    source: str
    about: str
    pieces: tuple[tuple[float, bool, bytes], ...]
    expect: dict[str, Any]
    head: bytes | None
    split: int | None
    end: End
    asked: int | None
    late_ms: float
    set_aside: bool

    @property
    def chunked(self) -> bool:
        return self.head is None or b"transfer-encoding: chunked" in self.head.lower()

    def recording(self) -> Recording:
        """As it is recorded where every step arrives at its time, in a read of its own or merged as it says."""
        reads: list[tuple[float, bytes]] = [(0.5, self.head or CHUNKED)]
        for at, merge, text in self.pieces:
            data = b"%x\r\n%s\r\n" % (len(text), text) if self.chunked else text
            reads = [*reads[:-1], (at, reads[-1][1] + data)] if merge else [*reads, (at, data)]
        if self.chunked and self.end is End.COMPLETE:
            reads.append((reads[-1][0], b"0\r\n\r\n"))
        if self.split:
            reads = [(at, data[i : i + self.split]) for at, data in reads for i in range(0, len(data), self.split)]
        late = int(self.late_ms * MS)
        return Recording(
            send_ns=SEND,
            end_ns=SEND + 60_000 * MS,
            offset_before_ns=OFFSET,
            offset_after_ns=OFFSET,
            reads=[Read(OFFSET + SEND + int(at * MS), SEND + int(at * MS) + late, data) for at, data in reads],
            end=self.end,
        )

    def script(self) -> Script:
        """For the scripted endpoint, with the same times."""
        return Script(
            head=self.head,
            framing="chunked"
            if self.chunked
            else "length"
            if b"content-length" in (self.head or b"").lower()
            else "eof",
            steps=[(at / 1e3, text) for at, _, text in self.pieces],
            piece_bytes=self.split,
            tear={End.CUT: "close", End.RESET: "reset"}.get(self.end),  # type: ignore[arg-type]
        )


def reported(path: Path) -> ReportedStream:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    newline = b"\r\n" if document.get("newline") == "crlf" else b"\n"
    at = 1.0
    pieces = []
    for step in document["steps"]:
        at = step.get("at", at)
        pieces.append((at, step.get("merge", False), _text(step, newline)))
    head = document.get("head")
    return ReportedStream(
        name=path.stem,
        source=document["source"],
        about=document["about"],
        pieces=tuple(pieces),
        expect=document["expect"],
        head=None if head is None else head.replace("\n", "\r\n").encode() + b"\r\n",
        split=document.get("split"),
        end=End(document.get("end", "complete")),
        asked=document.get("asked"),
        late_ms=document.get("late_ms", 0.0),
        set_aside=document.get("set_aside", False),
    )


def reports() -> list[ReportedStream]:
    """All of them, by name."""
    return [reported(path) for path in sorted(FOLDER.glob("*.yaml"))]


def _text(step: dict[str, Any], newline: bytes) -> bytes:
    if "raw" in step:
        return str(step["raw"]).encode() * int(step.get("times", 1))
    if step.get("done"):
        return b"data: [DONE]" + newline * 2
    return b"data: " + json.dumps(step.get("json", _message(step)), ensure_ascii=False).encode() + newline * 2


def _message(step: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"id": "r-1", "choices": []}
    if "delta" in step or "text" in step or "finish" in step:
        inner = {"text": step["text"]} if "text" in step else {"delta": step.get("delta", {})}
        message["choices"] = [{"index": 0, **inner, "finish_reason": step.get("finish")}]
    if "usage" in step:
        usage = step["usage"]
        message["usage"] = {"prompt_tokens": 9, "completion_tokens": usage} if isinstance(usage, int) else usage
    return message
