"""One tiny model for all tests of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.llama.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
    write_tiny_model(path)
    return path
