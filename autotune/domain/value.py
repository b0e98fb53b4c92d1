"""The base of everything that crosses a boundary: process, HTTP, database."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """Frozen and equal by content; pickles, round-trips through JSON, rejects unknown keys.

    Infinity and NaN are refused: JSON has no word for them, so a stored value could not be read again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
