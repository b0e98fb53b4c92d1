"""The event log as a stream: server-sent events that a client can take up where it lost them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.errors import declared
from api.parts import Given, Parts
from autotune.engine.ports import Event
from autotune.errors import Unavailable

router = APIRouter(prefix="/api/v1", tags=["events"])

POLL_S = 0.25
RETRY_MS = 1000
_BATCH = 500
_MAX_SEQ = 2**63 - 1

Seq = Annotated[int | None, Query(ge=0, le=_MAX_SEQ, description="Give events after this one.")]
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="What a browser sends when it reconnects; wins over after.")
]


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={
        **declared(text=True),
        200: {
            "description": "Server-sent events without an end. `id` is the event's seq, `data` an Event as JSON.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
    },
)
async def events(
    parts: Given,
    after: Seq = None,
    study_id: Annotated[int | None, Query(ge=1, description="Only this study's.")] = None,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Every event after the given one as it is stored; without one, those from now on."""
    newest = await run_in_threadpool(parts.store.last_event)
    known = int(last_event_id) if last_event_id and _is_seq(last_event_id) else after
    # A client that knows more than the store has seen another database: it must not wait for its old number.
    start = newest if known is None else min(known, newest)
    return StreamingResponse(
        _stream(parts, start, study_id),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


async def _stream(parts: Parts, after: int, study_id: int | None) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n: seq {after}\n\n"
    quiet_since = time.monotonic()
    while not parts.stopping.is_set():
        try:
            found = await run_in_threadpool(parts.store.events, after, _BATCH)
        except Unavailable:
            return  # the client reconnects and goes on after the last event it has
        for event in found:
            after = event.seq
            if study_id is None or event.study_id == study_id:
                yield _frame(event)
                quiet_since = time.monotonic()
        if time.monotonic() - quiet_since >= parts.settings.heartbeat_s:
            yield ": still here\n\n"
            quiet_since = time.monotonic()
        if len(found) < _BATCH:
            await asyncio.sleep(POLL_S)


def _frame(event: Event) -> str:
    return f"id: {event.seq}\ndata: {event.model_dump_json()}\n\n"


def _is_seq(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) <= _MAX_SEQ
