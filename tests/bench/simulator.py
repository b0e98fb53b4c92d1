"""Published against simulated, for every figure of the field reports that the model claims.

Prints a table and writes `out/bench/sim.json`. Ends with status 1 when a claimed figure of report A is off by more
than 2 %, or one of B or C by more than 5 %. Interactions that no coefficient was fitted to are `predicted`; a figure
that is not claimed is `listed` with its reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench import report_a_rows, report_b_rows, report_c_rows
from tests.bench.published import Row

OUT = Path("out/bench/sim.json")
LIMIT_PCT = {"A": 2.0, "B": 5.0, "C": 5.0}


def missed(rows: Sequence[Row]) -> list[Row]:
    """Claims that are not kept."""
    return [row for row in rows if row.kind != "listed" and abs(row.error_pct) > LIMIT_PCT[row.report]]


def all_rows() -> list[Row]:
    """Every published figure, in the order of the reports."""
    return [*report_a_rows.rows(), *report_b_rows.rows(), *report_c_rows.rows()]


def main() -> int:
    rows = all_rows()
    sys.stdout.write(f"{'':2}{'row':58}{'published':>12}{'simulated':>12}{'error':>9}  kind\n")
    for row in rows:
        figures = f"{row.published:12.6g}{row.simulated:12.6g}{row.error_pct:8.2f}%"
        note = f": {row.note}" if row.note else ""
        sys.stdout.write(f"{row.report:2}{row.row + ', ' + row.unit:58}{figures}  {row.kind}{note}\n")
    broken = missed(rows)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({"rows": [row.as_json() for row in rows], "missed": len(broken)}, indent=2) + "\n")
    kinds = {kind: sum(row.kind == kind for row in rows) for kind in ("fitted", "predicted", "listed")}
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    sys.stdout.write(f"{len(rows)} rows: {counts}; {len(broken)} claims missed; written to {OUT}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
