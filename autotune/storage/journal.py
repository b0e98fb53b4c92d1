"""The append-only event log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from autotune.engine.ports import Event
from autotune.storage.database import COUNTER
from autotune.storage.event_data import EventKind
from autotune.storage.schema import EventCounterRow, EventRow


def append(
    session: Session,
    kind: EventKind,
    *,
    at: datetime,
    study_id: int,
    trial_number: int | None = None,
    data: dict[str, Any],
) -> None:
    """Add an event to the transaction, which holds the counter's lock from its start."""
    counter = session.get_one(EventCounterRow, COUNTER)
    counter.last_seq += 1
    session.add(
        EventRow(
            seq=counter.last_seq,
            at=at,
            kind=kind.value,
            study_id=study_id,
            trial_number=trial_number,
            data=json.dumps(data, separators=(",", ":"), allow_nan=False),
        )
    )


def read(session: Session, after: int, limit: int) -> Sequence[Event]:
    """Events with seq > after, ascending."""
    rows = session.exec(select(EventRow).where(EventRow.seq > after).order_by(col(EventRow.seq)).limit(limit))
    return [
        Event(
            seq=row.seq,
            at=row.at,
            kind=row.kind,
            study_id=row.study_id,
            trial_number=row.trial_number,
            data=json.loads(row.data),
        )
        for row in rows
    ]


def last(session: Session) -> int:
    """The highest seq, 0 when there is none."""
    return session.get_one(EventCounterRow, COUNTER).last_seq
