"""A published figure beside the simulated one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["fitted", "predicted", "listed"]


@dataclass(frozen=True, slots=True)
class Row:
    """`fitted`: a coefficient was chosen to meet it; `predicted`: it follows; `listed`: not claimed, see `note`."""

    report: str
    row: str
    unit: str
    published: float
    simulated: float
    kind: Kind
    note: str = ""

    @property
    def error_pct(self) -> float:
        return (self.simulated / self.published - 1) * 100

    def as_json(self) -> dict[str, Any]:
        return {
            "report": self.report,
            "row": self.row,
            "unit": self.unit,
            "published": self.published,
            "simulated": round(self.simulated, 4),
            "error_pct": round(self.error_pct, 2),
            "kind": self.kind,
            "note": self.note,
        }
