"""`autotune recompute STUDY/TRIAL`: which attempt that was, and where its folder should be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.fake_api import FakeApi, detail, overview, study, trial


@pytest.fixture
def known(api: FakeApi) -> str:
    """The attempt's uid."""
    api.says("GET /studies/3", overview(study()))
    api.says("GET /studies/3/trials/1", detail(trial(1)))
    return f"{study().uid}-1-{trial(1).attempt}"


def recomputed(api: FakeApi, data: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "autotune.cli.main", "recompute", "3/1", "--url", api.url]
    env = {**os.environ, "AUTOTUNE_DATA": str(data)}
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120, env=env)


def test_the_folder_of_a_trial_is_found(api: FakeApi, known: str, tmp_path: Path) -> None:
    (tmp_path / "attempts" / known).mkdir(parents=True)
    done = recomputed(api, tmp_path)
    assert done.returncode == 1
    assert f"{known} holds no finished load" in done.stderr


def test_a_folder_of_another_host(api: FakeApi, known: str, tmp_path: Path) -> None:
    done = recomputed(api, tmp_path)
    assert done.returncode == 1
    assert f"{known} is not here: streams stay on the host" in done.stderr
