"""Named rights that one owner holds for a while."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlmodel import Session

from autotune.storage.schema import LeaseRow


def hold(session: Session, name: str, owner: str, now: datetime, ttl_s: float) -> bool:
    """Take a free or run-out lease, or renew our own; False while it is another's."""
    row = session.get(LeaseRow, name)
    if row is not None and row.owner != owner and now < row.until:
        return False
    if row is None:
        row = LeaseRow(name=name, owner=owner, until=now)
    row.owner = owner
    row.until = now + timedelta(seconds=ttl_s)
    session.add(row)
    return True


def release(session: Session, name: str, owner: str) -> None:
    """Give our own lease back."""
    row = session.get(LeaseRow, name)
    if row is not None and row.owner == owner:
        session.delete(row)


def owner(session: Session, name: str, now: datetime) -> str | None:
    """Who holds the lease; None for a free or run-out one."""
    row = session.get(LeaseRow, name)
    return row.owner if row is not None and now < row.until else None
