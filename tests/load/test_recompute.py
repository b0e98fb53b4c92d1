"""Figures computed again from raw streams, against what is stored."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.load.mock_endpoint import MockEndpoint
from tests.load.running import run, spec_of


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attempt")
    with MockEndpoint() as endpoint:
        run(spec_of(endpoint.url, (2, 4), output=8), folder)
    return folder


@pytest.fixture
def copy(attempt: Path, tmp_path: Path) -> Path:
    for path in attempt.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def recomputed(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "autotune.cli.main", "recompute", *arguments]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120)


def answer(folder: Path) -> dict[str, Any]:
    done = recomputed(str(folder), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_same_definitions_give_the_same_figures(attempt: Path) -> None:
    found = answer(attempt)
    assert (found["requests"], found["stored_only"], found["changed_samples"], found["changes"]) == (4, 0, {}, [])
    assert found["measurement"]["levels"]["c2"]["sent"] == 4


def test_what_changed_is_said(copy: Path) -> None:
    """As if another definition had given the stored figures."""
    stored = json.loads((copy / "samples.json").read_text())
    for sample in stored["levels"]["c2"]:
        sample["ttft_ms"] += 100
    (copy / "samples.json").write_text(json.dumps(stored))
    found = answer(copy)
    assert found["changed_samples"] == {"ttft_ms": 4}
    change = next(change for change in found["changes"] if change["figure"] == "ttft_ms.mean")
    assert change["stored"] - change["now"] == pytest.approx(100)
    words = recomputed(str(copy)).stdout
    assert "changed in requests: ttft_ms (4)" in words
    assert "c2 ttft_ms.mean: " in words


def test_without_streams_it_says_why(copy: Path) -> None:
    (copy / "streams.gz").unlink()
    done = recomputed(str(copy))
    assert done.returncode == 1
    assert "holds no raw streams" in done.stderr
    (copy / "samples.json").unlink()
    assert "holds no finished load" in recomputed(str(copy)).stderr


def test_nothing_is_kept_where_answers_are_private(tmp_path: Path) -> None:
    with MockEndpoint() as endpoint:
        spec = spec_of(endpoint.url, (1, 1), output=4)
        run(spec.model_copy(update={"workload": spec.workload.model_copy(update={"keep_streams": False})}), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["load.json", "load.log", "samples.json"]


def test_virtual_trials_have_none(tmp_path: Path) -> None:
    provenance = {"host": "h", "version": "1", "template": "t", "simulated": True, "virtual_time": True, "roles": {}}
    failure = {"phase": "load", "failure_class": "request_errors", "summary": "no"}
    outcome = {"uid": "u-1-1", "failure": failure, "provenance": provenance}
    (tmp_path / "outcome.json").write_text(json.dumps(outcome))
    done = recomputed(str(tmp_path))
    assert done.returncode == 1
    assert "virtual time" in done.stderr


def test_what_is_no_folder_and_no_trial() -> None:
    done = recomputed("nowhere")
    assert done.returncode == 2
    assert "neither a folder nor STUDY/TRIAL" in done.stderr
