"""Run as a process of its own: commits trial after trial and prints the number of each that is stored."""

from __future__ import annotations

import sys

from autotune.storage.sql_store import open_store
from tests.builders import new_trial, outcome, verdict


def tell(step: str, number: int) -> None:
    sys.stdout.write(f"{step} {number}\n")
    sys.stdout.flush()


def main(url: str, study_id: int) -> None:
    store = open_store(url)
    new, judged = new_trial(), verdict()
    while True:
        number = store.add_trial(study_id, new).number
        tell("added", number)
        store.start_attempt(study_id, number, f"u-{number}")
        tell("started", number)
        store.finish_trial(study_id, number, 1, outcome(f"u-{number}"), judged)
        tell("finished", number)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
