"""Whether a worker notices that it runs other code than the dispatcher."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from workers.code_identity import code_identity, code_mismatch, code_version


def test_same_code() -> None:
    assert code_mismatch(code_version()) is None


def test_the_source_has_a_name_of_its_own() -> None:
    first = code_identity()
    code_identity.cache_clear()
    assert code_identity() == first
    assert first.startswith(f"{code_version()}+")


def test_other_version_is_named() -> None:
    words = code_mismatch("0.0.0")
    assert words is not None
    assert "0.0.0" in words
    assert code_version() in words


def test_planted_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "search_spaces").mkdir()
    (tmp_path / "search_spaces" / "__init__.py").touch()
    done = subprocess.run([sys.executable, "-c", PLANTED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "several places" in done.stdout
    assert str(tmp_path) in done.stdout


PLANTED = """
import sys
sys.path.insert(0, sys.argv[1])
from workers.code_identity import code_mismatch, code_version
print(code_mismatch(code_version()))
"""
