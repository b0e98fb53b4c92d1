"""What a real llama.cpp server says of itself, compared with what it was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.domain.launch_plan import RolePlan
from tests.llama.running import started
from workers.effective.compare import effective


@pytest.mark.parametrize(
    ("flags", "applied", "corrected"),
    [
        (
            ("--parallel", "2", "--ctx-size", "1024", "--no-kv-unified"),
            {"--threads": 1, "--parallel": 2, "--ctx-size": 1024, "--kv-unified": False},
            [],
        ),
        (("--parallel", "4", "--ctx-size", "2048", "--kv-unified"), {"--parallel": 4, "--ctx-size": 2048}, []),
        (("--parallel", "3", "--ctx-size", "1000"), {"--ctx-size": 1536}, [("--ctx-size", 1000, 1536)]),
        (("--parallel", "2", "--ctx-size", "99999"), {"--ctx-size": 8192}, [("--ctx-size", 99999, 8192)]),
        ((), {"--parallel": 4, "--ctx-size": 4096, "--kv-unified": True}, []),
    ],
)
def test_a_real_servers_log(
    model: Path,
    tmp_path: Path,
    flags: tuple[str, ...],
    applied: dict[str, int],
    corrected: list[tuple[str, int, int]],
) -> None:
    with started(model, tmp_path, *flags) as server:
        server.wait_ready()
        found = effective("llama-cpp", RolePlan(argv=flags), server.text())
    assert applied.items() <= found.applied.items()
    assert [(c.setting, c.asked, c.got) for c in found.corrected] == corrected
    assert found.ignored == ()
