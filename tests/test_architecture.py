"""The rules of the layout, of types and of style, checked on every run of the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("autotune", "search_spaces", "workers", "api")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name(argv[0])
    return subprocess.run([tool, *argv[1:]], cwd=ROOT, capture_output=True, text=True, check=False)


def test_layer_contracts_hold() -> None:
    done = run("lint-imports", "--no-cache")
    assert done.returncode == 0, done.stdout


def test_types_are_strict_and_hold() -> None:
    done = run("mypy")
    assert done.returncode == 0, done.stdout


def test_code_is_linted_and_formatted() -> None:
    for argv in (("ruff", "check", "."), ("ruff", "format", "--check", ".")):
        done = run(*argv)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_are_short_and_named_after_an_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in VAGUE


def test_our_four_packages_come_from_one_place() -> None:
    """A foreign `api` or `workers` on sys.path would otherwise win in silence."""
    homes = {str(Path(str(import_module(name).__file__)).parents[1]) for name in PACKAGES}
    assert homes == {str(ROOT)}


def test_locks_pin_by_hash_and_name_no_host() -> None:
    for lock in (ROOT / "requirements").glob("*.txt"):
        text = lock.read_text()
        assert "://" not in text, lock
        pins = re.findall(r"^[a-zA-Z0-9._-]+(?:\[[^]]*\])?==", text, re.MULTILINE)
        assert pins
        assert len(re.findall(r"\\\n    --hash=", text)) >= len(pins)
