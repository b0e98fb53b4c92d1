"""`python -m workers.failures --engine E --phase P [--exit-code N] [--asked FILE] FILE...`: why a server failed.

Prints JSON. Ends with 0, or with 2 for wrong use and for a file that cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.domain.failure import Phase
from workers.failures.asked import asked_settings
from workers.failures.page import failure_page


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="autotune classify", description="Say why a server failed, from its logs.")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--phase", required=True, type=Phase, choices=list(Phase), metavar="|".join(Phase))
    parser.add_argument("--exit-code", type=int)
    parser.add_argument("--asked", type=Path)
    parser.add_argument("--oom-kills", type=int)
    parser.add_argument("--silent-for", type=float)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    try:
        logs = {str(path): _text(path) for path in given.files}
        asked = asked_settings(_text(given.asked)) if given.asked else None
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    page = failure_page(
        given.phase,
        given.exit_code,
        logs,
        given.engine,
        asked=asked,
        oom_kills=given.oom_kills,
        silence_s=given.silent_for,
    )
    sys.stdout.write(page.model_dump_json(indent=2) + "\n")
    return 0


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "replace")


if __name__ == "__main__":
    sys.exit(main())
