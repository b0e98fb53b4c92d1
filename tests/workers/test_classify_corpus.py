"""Whole logs: what the engines wrote, what it means, and that a server that works is never accused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from autotune.domain.failure import FailureClass, Phase, RetryPolicy
from workers.failures.classify import classify

LOGS = Path(__file__).with_name("failure_logs")
HEALTHY = "healthy"
FROM_OUTSIDE = -15


class Entry(NamedTuple):
    """A log of the corpus: what is known of its launch, and what is right."""

    name: str
    phase: Phase
    exit_code: int | None
    expected: str
    retry: str | None
    half: str
    after: str

    @property
    def engine(self) -> str:
        return self.name.split("/")[0]

    @property
    def text(self) -> str:
        return (LOGS / f"{self.name}.log").read_text(encoding="utf-8")


ENTRIES = [
    Entry(name, Phase(one["phase"]), one["exit_code"], one["class"], one["retry"], one["half"], one["after"])
    for name, one in yaml.safe_load((LOGS / "index.yaml").read_text(encoding="utf-8")).items()
]
FAILED = [entry for entry in ENTRIES if entry.expected != HEALTHY]
WORKING = [entry for entry in ENTRIES if entry.expected == HEALTHY]
USED = [entry for entry in FAILED if entry.half != "aside"]


@pytest.mark.parametrize("entry", USED, ids=[entry.name for entry in USED])
def test_a_log_that_the_patterns_were_made_with(entry: Entry) -> None:
    finding = classify(entry.phase, entry.exit_code, entry.text, entry.engine)
    assert finding.failure_class is FailureClass(entry.expected), finding
    assert finding.retry is RetryPolicy(entry.retry or ""), finding


def test_logs_that_no_pattern_was_made_with() -> None:
    """The goal, not the state: a change that helps one kind of log may not cost many others."""
    aside = [entry for entry in FAILED if entry.half == "aside"]
    findings = [classify(entry.phase, entry.exit_code, entry.text, entry.engine) for entry in aside]
    pairs = list(zip(aside, findings, strict=True))
    assert sum(found.failure_class == entry.expected for entry, found in pairs) >= 0.8 * len(aside)
    assert sum(found.retry == entry.retry for entry, found in pairs) >= 0.9 * len(aside)


@pytest.mark.parametrize("entry", WORKING, ids=[entry.name for entry in WORKING])
def test_a_server_that_works_is_not_accused(entry: Entry) -> None:
    assert classify(entry.phase, None, entry.text, entry.engine).signature is None
    stopped = classify(entry.phase, FROM_OUTSIDE, entry.text, entry.engine)
    assert stopped.failure_class is FailureClass.INFRASTRUCTURE
    assert stopped.signature is None


def test_the_index_names_every_log_and_halves_are_by_hash() -> None:
    files = {str(path.relative_to(LOGS).with_suffix("")) for path in LOGS.rglob("*.log")}
    assert files == {entry.name for entry in ENTRIES}
    for entry in ENTRIES:
        digest = hashlib.sha256(entry.name.split("/")[1].encode()).hexdigest()
        assert entry.half in ({"late", "aside"} if int(digest, 16) % 2 else {"late", "seen"})


def test_the_corpus_is_large_enough_to_tell_something() -> None:
    threads = {entry.after for entry in ENTRIES if "#" in entry.after}
    assert len(FAILED) >= 60
    assert len(WORKING) >= 12
    assert len(threads) >= 40
    assert {entry.engine for entry in ENTRIES} == {"vllm-ascend", "sglang-ascend", "sglang", "vllm", "llama-cpp"}
